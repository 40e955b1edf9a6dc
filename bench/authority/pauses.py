"""`python -m bench.authority.pauses`: the longest steps of a shard's core with 500,000 key intervals, in CPU time.

All intervals report by columns, 1,000 in a message, in the order in which :mod:`bench.authority.reporter` sends them.
One interval of each computation reports in every third round only, so it holds the watermark meanwhile. After each
message the shard appends, and encodes a part of a base if one is due. A shard's loop does other work between two steps,
and none within a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby, islice
from time import thread_time
from typing import Final

from bench.authority.core import Bench
from millwheel.authority.base import BaseSnapshot
from millwheel.authority.messages import (
    AppendChanges,
    AppendJournaled,
    ReportsReceived,
    SnapshotWritten,
    Tick,
    WriteSnapshot,
)
from millwheel.rpc.report_columns import ReportColumns, columns_from_wire, columns_to_wire
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.server.startup import settle_memory
from millwheel.store.contract import PartId

__all__ = ["MeasuredShard"]

_BATCH: Final = 1_000
_SPREAD: Final = 1 << 20
_HELD_ROUNDS: Final = 3


class MeasuredShard:
    """A shard whose steps are measured. ``steps``: the CPU seconds of each, by what was done in it."""

    def __init__(self, intervals: int) -> None:
        self._bench = Bench(intervals)
        self._bench.own()  # its steps are not measured
        self._writing: tuple[BaseSnapshot, Iterator[tuple[PartId, bytes]]] | None = None
        self._rounds = 0
        self.steps: dict[str, list[float]] = {}

    def round(self) -> None:
        """Let the intervals report higher watermarks, with all that the shard does meanwhile."""
        self._rounds += 1
        for columns in self._messages():
            self._bench.now += _BATCH
            event = ReportsReceived(columns=[columns])
            began = thread_time()
            refused = self._bench.step(event)
            self._took("1,000 reports", began)
            assert not refused
            self._append()
            self._write()

    def _messages(self) -> Iterator[ReportColumns]:
        """The round's reports, in the order of the intervals."""
        least = self._rounds * _SPREAD
        for name, owned in groupby(enumerate(self._bench.members), key=lambda place: place[1][0]):
            reporting = (one for one in owned if one[1][1].start or self._rounds % _HELD_ROUNDS == 0)
            while some := list(islice(reporting, _BATCH)):
                reports = [
                    WatermarkReport(name, keys, place + 1, least + place * 7919 % _SPREAD) for place, (_, keys) in some
                ]
                yield columns_from_wire(columns_to_wire(name, reports))

    def _append(self) -> None:
        """Append all that waits."""
        while True:
            began = thread_time()
            effects = self._bench.step(Tick())
            took = thread_time() - began
            if not effects:
                return
            assert isinstance(effects[0], AppendChanges)
            began = thread_time()
            done = self._bench.step(AppendJournaled())
            self._took("a journaled append", began)
            snapshots = [effect.snapshot for effect in done if isinstance(effect, WriteSnapshot)]
            self.steps.setdefault("an append, and a frozen base" if snapshots else "an append", []).append(took)
            for snapshot in snapshots:
                self._writing = snapshot, snapshot.parts()

    def _write(self) -> None:
        """Encode a part of the base, if one is due. After the last, the next append names all of them."""
        if self._writing is None:
            return
        snapshot, parts = self._writing
        began = thread_time()
        part = next(parts, None)
        self._took("a part of a base", began)
        if part is None:
            self._writing = None
            self._bench.step(SnapshotWritten(snapshot))

    def _took(self, what: str, began: float) -> None:
        self.steps.setdefault(what, []).append(thread_time() - began)


def main() -> None:
    """Measure, and print the steps by kind, with the longest of each."""
    parser = argparse.ArgumentParser(prog="python -m bench.authority.pauses", description=__doc__)
    parser.add_argument("--intervals", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    settle_memory()  # as the daemon does
    shard = MeasuredShard(options.intervals)
    for _ in range(options.rounds):
        shard.round()
    for what, taken in sorted(shard.steps.items(), key=lambda step: -max(step[1])):
        longest = " ".join(f"{seconds * 1e3:.2f}" for seconds in sorted(taken, reverse=True)[:5])
        print(f"{what}: {len(taken):,} times, {sum(taken):.2f} s in all; the longest in ms: {longest}")


if __name__ == "__main__":
    main()
