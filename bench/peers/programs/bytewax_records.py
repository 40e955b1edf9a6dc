"""The records of the keyed count for Bytewax, and where its results go. Neither needs a broker.

The records are made before the clock begins. They need no decoding, and come with their keys.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition

__all__ = ["MadeRecords", "SummedResults", "job"]

job: dict[str, Any] = json.loads(os.environ["PEER_JOB"])
_began = [0.0, 0.0]
"""When the first records were read: by the clock, and by this process's processor time."""

Keyed = tuple[str, tuple[Any, bytes]]
"""The key, and the record: its event time, and the payload."""


class _Read(StatefulSourcePartition[Keyed, int]):  # type: ignore[misc]
    """All records, batch by batch, from a position on."""

    def __init__(self, first: int, time_of: Callable[[int], Any]) -> None:
        payload = bytes(job["payload_bytes"])
        with Path(job["records"]).open("rb") as lines:
            read = map(orjson.loads, lines)
            self._batches = [
                [(key, (time_of(at), payload)) for key, at in zip(keys, stamps, strict=True)] for keys, stamps in read
            ]
        self._next = first

    def next_batch(self) -> list[Keyed]:
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


class MadeRecords(FixedPartitionedSource[Keyed, int]):  # type: ignore[misc]
    """The records, as one partition. ``time_of``: makes the event time of a record of microseconds."""

    def __init__(self, time_of: Callable[[int], Any]) -> None:
        self._time_of = time_of

    def list_parts(self) -> list[str]:
        """The names of the partitions."""
        return ["all"]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> _Read:
        """Read a partition."""
        return _Read(resume_state or 0, self._time_of)


class _Summed(StatelessSinkPartition[tuple[str, tuple[int, int]]]):  # type: ignore[misc]
    """Adds up the results, and writes the sums when there are no more."""

    def __init__(self) -> None:
        self._results = self._counted = 0

    def write_batch(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        """Take results."""
        self._results += len(items)
        self._counted += sum(count for _, (_, count) in items)

    def close(self) -> None:
        """All results are here."""
        seconds, spent = time.perf_counter() - _began[0], time.process_time() - _began[1]
        Path(job["result"]).write_text(json.dumps([seconds, spent, self._results, self._counted]))


class SummedResults(DynamicSink[tuple[str, tuple[int, int]]]):  # type: ignore[misc]
    """Where results go: a key, its window, and the number of records in it."""

    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Summed:
        """Take results of a worker."""
        return _Summed()
