"""The stateful processor that counts for Spark: each window has one result, and late records none."""

from __future__ import annotations

from typing import Any, cast

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pandas")

import pandas as pd
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessorHandle, TimerValues

from bench.peers.programs.spark_python import CountWindows

WINDOW_MS = 10


class ProcessorHandle:
    """The state and the timers of one key. It is its value state, too."""

    def __init__(self) -> None:
        self.value: tuple[list[int], list[int]] | None = None
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: str) -> ProcessorHandle:
        return self

    def get(self) -> tuple[list[int], list[int]] | None:
        return self.value

    def update(self, value: tuple[list[int], list[int]]) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None

    def registerTimer(self, at: int) -> None:
        self.timers.add(at)


class OneKey:
    """The processor, with the records of one key."""

    def __init__(self) -> None:
        self.handle = ProcessorHandle()
        self._counting = CountWindows(WINDOW_MS)
        self._counting.init(cast(StatefulProcessorHandle, self.handle))

    def add(self, starts: list[int], watermark: int) -> None:
        """A batch has records of these windows."""
        frames = iter([pd.DataFrame({"key": "a", "start": starts})])
        assert list(self._counting.handleInputRows(("a",), frames, TimerValues(0, watermark))) == []

    def expire(self, watermark: int) -> list[tuple[Any, ...]]:
        """All timers up to the watermark come. What has results."""
        results = []
        for at in sorted(one for one in self.handle.timers if one <= watermark):
            found = self._counting.handleExpiredTimer(("a",), TimerValues(0, watermark), ExpiredTimerInfo(at))
            results += [tuple(row) for frame in found for row in frame.itertuples(index=False)]
            self.handle.timers.discard(at)
        return results


def test_one_timer_is_for_the_first_window_of_a_key() -> None:
    key = OneKey()
    key.add([0, 20, 0, 10], watermark=-1)
    assert key.handle.value == ([0, 20, 10], [2, 1, 1])
    assert key.handle.timers == {10}


def test_complete_windows_have_one_result_in_their_order() -> None:
    key = OneKey()
    key.add([10, 0, 0, 20], watermark=-1)
    assert key.expire(20) == [("a", 0, 2), ("a", 10, 1)]
    assert key.handle.timers == {30}
    key.add([20], watermark=20)
    assert key.expire(29) == []
    assert key.expire(30) == [("a", 20, 2)]
    assert key.handle.value is None
    assert not key.handle.timers


def test_a_record_of_a_complete_window_is_late() -> None:
    key = OneKey()
    key.add([0], watermark=-1)
    assert key.expire(10) == [("a", 0, 1)]
    key.add([0, 10, 0], watermark=10)
    assert key.expire(100) == [("a", 10, 1)]


def test_a_window_before_the_first_one_has_a_timer() -> None:
    key = OneKey()
    key.add([20], watermark=5)
    key.add([10], watermark=5)
    assert key.handle.timers == {20, 30}
    assert key.expire(20) == [("a", 10, 1)]
    assert key.expire(30) == [("a", 20, 1)]


def test_a_timer_whose_windows_have_results_changes_nothing() -> None:
    key = OneKey()
    key.add([20], watermark=5)
    key.add([10, 30], watermark=5)
    assert key.expire(30) == [("a", 10, 1), ("a", 20, 1)]
    assert key.handle.timers == {40}
    assert key.expire(40) == [("a", 30, 1)]


def test_late_records_alone_leave_no_state() -> None:
    key = OneKey()
    key.add([0], watermark=10)
    assert key.handle.value is None
    assert not key.handle.timers
