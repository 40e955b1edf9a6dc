"""The keyed count as a dataflow of Bytewax whose logic is written by hand: no windows of its library.

Its records are made before the clock begins. They need no decoding, and come with their keys.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import bytewax.operators as op
import orjson
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators import StatefulBatchLogic
from bytewax.outputs import DynamicSink, StatelessSinkPartition

__all__ = ["flow"]

_job: dict[str, Any] = json.loads(os.environ["PEER_JOB"])
_SECOND = 1_000_000
_LATE: int = _job["out_of_order_us"]
_began = [0.0, 0.0]
"""When the first records were read: by the clock, and by this process's processor time."""

Hit = tuple[int, bytes]
"""The event time in microseconds, and the payload."""
SecondCount = tuple[int, int]
"""The end of a second of event time, and the number of records in it."""


def _batches() -> list[list[tuple[str, Hit]]]:
    payload = bytes(_job["payload_bytes"])
    with Path(_job["records"]).open("rb") as lines:
        read = map(orjson.loads, lines)
        return [[(key, (at, payload)) for key, at in zip(keys, stamps, strict=True)] for keys, stamps in read]


class _Read(StatefulSourcePartition[tuple[str, Hit], int]):  # type: ignore[misc]
    """All records, batch by batch, from a position on."""

    def __init__(self, first: int) -> None:
        self._batches = _batches()
        self._next = first

    def next_batch(self) -> list[tuple[str, Hit]]:
        """The next records. The clock begins with the first ones."""
        if not self._next:
            _began[:] = time.perf_counter(), time.process_time()
        if self._next >= len(self._batches):
            raise StopIteration
        self._next += 1
        return self._batches[self._next - 1]

    def snapshot(self) -> int:
        """The number of batches that were read."""
        return self._next


class _Records(FixedPartitionedSource[tuple[str, Hit], int]):  # type: ignore[misc]
    """The records, as one partition."""

    def list_parts(self) -> list[str]:
        """The names of the partitions."""
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _Read:
        """Read a partition."""
        return _Read(resume_state or 0)


class SecondCounter(StatefulBatchLogic[Hit, SecondCount, tuple[dict[int, int], int]]):  # type: ignore[misc]
    """Counts a key's records by second of event time. A second is complete when a record is so much later."""

    def __init__(self, kept: tuple[dict[int, int], int] | None) -> None:
        self.counts, self.newest = ({}, 0) if kept is None else (dict(kept[0]), kept[1])

    def on_batch(self, values: list[Hit]) -> tuple[Iterable[SecondCount], bool]:
        """Count the records, and pass on what is complete."""
        counts, newest = self.counts, self.newest
        for at, _ in values:
            end = at - at % _SECOND + _SECOND
            if end in counts:
                counts[end] += 1
            else:
                counts[end] = 1
            if at > newest:
                newest = at
        self.newest = newest
        complete = newest - _LATE
        done = [(end, counts.pop(end)) for end in list(counts) if end <= complete]
        return done, StatefulBatchLogic.RETAIN

    def on_eof(self) -> tuple[Iterable[SecondCount], bool]:
        """No records come any more: pass on everything."""
        return list(self.counts.items()), StatefulBatchLogic.DISCARD

    def notify_at(self) -> datetime | None:
        """It waits for no time."""
        return None

    def snapshot(self) -> tuple[dict[int, int], int]:
        """What a restart continues from."""
        return dict(self.counts), self.newest


class _Counted(StatelessSinkPartition[tuple[str, SecondCount]]):  # type: ignore[misc]
    """Adds up the results, and prints them when there are no more."""

    def __init__(self) -> None:
        self._results = self._counted = 0

    def write_batch(self, items: list[tuple[str, SecondCount]]) -> None:
        """Take results."""
        self._results += len(items)
        self._counted += sum(count for _, (_, count) in items)

    def close(self) -> None:
        """All results are here."""
        seconds, spent = time.perf_counter() - _began[0], time.process_time() - _began[1]
        Path(_job["result"]).write_text(json.dumps([seconds, spent, self._results, self._counted]))


class _Results(DynamicSink[tuple[str, SecondCount]]):  # type: ignore[misc]
    """Where results go."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Counted:
        """Take results of a worker."""
        return _Counted()


flow = Dataflow("keyed-count")
_hits = op.input("hits", flow, _Records())
_counts = op.stateful_batch("count", _hits, SecondCounter)
op.output("results", _counts, _Results())
