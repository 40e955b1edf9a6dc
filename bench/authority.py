"""The throughput of the watermark authority's core with the paper's 500,000 key intervals (section 7.2).

    python bench/authority.py [--intervals 500000]

Prints the reports per second, with one append for each batch. The appends' bytes are built but not written. Also prints
the cost of a restart, and the cost of one report while all other intervals are idle.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from time import perf_counter

from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.authority.messages import (
    AppendChanges,
    AppendJournaled,
    AuthorityEffect,
    AuthorityEvent,
    ReportsReceived,
    SequencerOffered,
    SnapshotWritten,
    Tick,
    WriteSnapshot,
)
from millwheel.authority.pace import PaceSettings
from millwheel.model.keys import KeyInterval
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.contract import JournalHead, PartId

COMPUTATION = "window-counter.17"
BATCH = 1_000
_AT_ONCE = PaceSettings(coalesce=0, longest_rest=0, idle=0, verify=1 << 60)


def pieces(count: int) -> list[KeyInterval]:
    """All keys in ``count`` intervals."""
    bounds = [b"", *(b"%08x" % (n * (2**32 // count)) for n in range(1, count))]
    return [KeyInterval(start, end) for start, end in zip(bounds, [*bounds[1:], None], strict=True)]


class Bench:
    """One shard. Each of its appends is journaled at once, in memory."""

    def __init__(self, intervals: int) -> None:
        self.core = AuthorityCore("authority.0", 1, JournalHead(1, 0, 0, ()), CoreSettings(pace=_AT_ONCE))
        self.now = 1
        self.step(Tick())
        self.intervals = pieces(intervals)
        self.appended_bytes = 0
        self.stored: list[bytes] = []

    def step(self, event: AuthorityEvent) -> Sequence[AuthorityEffect]:
        return self.core.step(event, self.now)

    def flush(self) -> None:
        while effects := self.step(Tick()):
            for effect in effects:
                assert isinstance(effect, AppendChanges)
                self.appended_bytes += len(effect.append.entry)
            for done in self.step(AppendJournaled()):
                if isinstance(done, WriteSnapshot):
                    self.stored = [blob for _, blob in done.snapshot.parts()]
                    self.step(SnapshotWritten(done.snapshot))

    def own(self) -> float:
        """Seconds to accept every interval, in batches."""
        began = perf_counter()
        for number, keys in enumerate(self.intervals, start=1):
            self.step(SequencerOffered(number, COMPUTATION, keys, number))
            if number % BATCH == 0:
                self.flush()
        self.flush()
        return perf_counter() - began

    def report(self, reports: list[WatermarkReport]) -> float:
        """Seconds to process all reports, and to append their changes in batches."""
        began = perf_counter()
        for first in range(0, len(reports), BATCH):
            self.now = max(self.now, first)
            assert not self.step(ReportsReceived(reports[first : first + BATCH]))
            self.flush()
        return perf_counter() - began


def main() -> None:
    """Measure, and print one line for each figure."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--intervals", type=int, default=500_000)
    count = arguments.parse_args().intervals
    bench = Bench(count)
    taken = bench.own()
    print(f"accept {count:,} intervals in key order: {taken:.1f} s, {count / taken:,.0f}/s")
    order = list(enumerate(bench.intervals, start=1))
    chance = random.Random(1)
    for round_number in range(1, 4):
        chance.shuffle(order)
        reports = [
            WatermarkReport(COMPUTATION, keys, sequencer, round_number * 1_000_000 + chance.randrange(1_000_000))
            for sequencer, keys in order
        ]
        bench.appended_bytes = 0
        taken = bench.report(reports)
        print(
            f"round {round_number}: every interval reports a new value, in any order, batches of {BATCH:,}: "
            f"{count / taken:,.0f} reports/s, {bench.appended_bytes / count:.0f} journal bytes a report"
        )
    expected = min(report.watermark for report in reports)
    assert bench.core.broadcast(COMPUTATION) == expected
    taken = bench.report(reports)
    print(f"the same reports again, nothing changed: {count / taken:,.0f} reports/s")
    keys, sequencer = order[0][1], order[0][0]
    slow = [WatermarkReport(COMPUTATION, keys, sequencer, 9_000_000 + n) for n in range(20_000)]
    taken = bench.report(slow)
    print(f"one interval alone reports: {taken / len(slow) * 1e6:.1f} us a report")
    moved = perf_counter()
    for n in range(200):
        bench.step(SequencerOffered(0, COMPUTATION, order[n][1], count + n + 1))
        bench.flush()
    print(f"a move of one interval (exact replacement), appended: {(perf_counter() - moved) / 200 * 1e6:.0f} us")
    cut = perf_counter()
    for n in range(200):
        at = order[n][1].start + b"5"
        if at in order[n][1]:
            left, right = order[n][1].split(at)
            bench.step(SequencerOffered(0, COMPUTATION, left, 2 * count + 2 * n))
            bench.step(SequencerOffered(0, COMPUTATION, right, 2 * count + 2 * n + 1))
            bench.flush()
    print(f"a split of one interval, appended: {(perf_counter() - cut) / 200 * 1e6:.0f} us")
    began = perf_counter()
    answer = bench.core.explain(COMPUTATION, 0)
    assert answer is not None
    print(f"explain: {(perf_counter() - began) * 1e3:.0f} ms")
    if bench.stored:
        fresh = AuthorityCore(
            "authority.0", 2, JournalHead(2, 0, 0, tuple(PartId(str(n), 1, 0) for n in range(len(bench.stored))))
        )
        began = perf_counter()
        fresh.restore(bench.stored, [])
        size = sum(map(len, bench.stored))
        print(
            f"restart from a base of {size / 1e6:.1f} MB in {len(bench.stored)} parts: {perf_counter() - began:.1f} s"
        )


if __name__ == "__main__":
    main()
