"""The count in Spark's Structured Streaming, by a stateful processor in Python. The JVM reads and writes the JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.peers.programs.spark_topics import run

__all__ = ["CountWindows", "counted"]

_WINDOW = "CAST(floor(unix_millis(timestamp) / {window_ms}) * {window_ms} AS BIGINT) AS start"
_RESULT = "to_json(named_struct('key', `key`, 'start', start, 'count', `count`)) AS value"


class CountWindows(StatefulProcessor):
    """Counts the records of a key by windows. Its state is the open windows and their counts.

    Each call of the state goes to the JVM and back. So one state has all windows of a key, and one timer is for the
    first of them. With tables of pandas, 200 records of a key take two thirds of the time that they take as rows.

    Invariant: a key with open windows has a timer for the end of its first window. A window that comes before the first
    one would break it, so it sets a timer of its own.
    """

    def __init__(self, window_ms: int) -> None:
        """
        Args:
            window_ms: The size of the windows.
        """
        self._window_ms = window_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._counts = handle.getValueState("counts", "starts array<bigint>, counts array<bigint>")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Count the records of a batch. Those of windows that are complete are late."""
        counts = self._open_windows()
        first, watermark = min(counts, default=None), timerValues.getCurrentWatermarkInMs()
        for frame in rows:
            for start, count in Counter(frame["start"].tolist()).items():
                if start + self._window_ms > watermark:
                    counts[start] = counts.get(start, 0) + count
        if counts:
            self._keep(counts, new=min(counts) != first)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Give the results of the windows that are complete."""
        counts, watermark = self._open_windows(), timerValues.getCurrentWatermarkInMs()
        complete = sorted(start for start in counts if start + self._window_ms <= watermark)
        if not complete:
            return iter(())  # an earlier window came after this timer was set, and its timer gave the results of both
        results = pd.DataFrame({"key": key[0], "start": complete, "count": [counts.pop(start) for start in complete]})
        if counts:
            self._keep(counts, new=True)
        else:
            self._counts.clear()
        return iter((results,))

    def _open_windows(self) -> dict[int, int]:
        found = self._counts.get()
        return dict(zip(*found, strict=True)) if found else {}

    def _keep(self, counts: dict[int, int], *, new: bool) -> None:
        """Set the state. And a timer for the end of its first window, if that is a new one."""
        # A map would be simpler, but the state takes none whose keys are numbers.
        self._counts.update((list(counts), list(counts.values())))
        if new:
            self._handle.registerTimer(min(counts) + self._window_ms)

    def close(self) -> None:
        """Nothing is open."""


def counted(records: DataFrame, job: dict[str, Any]) -> DataFrame:
    """The results of the complete windows."""
    return (
        records.selectExpr("from_json(CAST(value AS STRING), 'key STRING').key AS key", _WINDOW.format(**job))
        .groupBy("key")
        .transformWithStateInPandas(
            statefulProcessor=CountWindows(job["window_ms"]),
            outputStructType="key STRING, start BIGINT, count BIGINT",
            outputMode="Append",
            timeMode="EventTime",
        )
        .selectExpr("key", _RESULT)
    )


if __name__ == "__main__":
    run(counted)
