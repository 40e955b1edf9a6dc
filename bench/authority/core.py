"""The authority's core alone: reports, with one append for each batch. The appends' bytes are built but not written."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Final

from bench.authority.intervals import members, names_of
from bench.report import Figure
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
from millwheel.rpc.report_columns import columns_from_wire, request_to_wire
from millwheel.rpc.watermarks import WatermarkReport
from millwheel.store.contract import JournalHead, PartId

__all__ = ["measure"]

_BATCH: Final = 1_000
_LONE: Final = 20_000
"""The reports of one interval while no other reports."""
_CHANGES: Final = 200
_AT_ONCE: Final = PaceSettings(coalesce=0, longest_rest=0, idle=0, verify=1 << 60)


class Bench:
    """One shard. Each of its appends is journaled at once, in memory."""

    def __init__(self, intervals: int) -> None:
        self.core = AuthorityCore("authority.0", 1, JournalHead(1, 0, 0, ()), CoreSettings(pace=_AT_ONCE))
        self.now = 1
        self.step(Tick())
        self.members = members(intervals)
        self.appended_bytes = 0
        self.stored: list[bytes] = []

    def step(self, event: AuthorityEvent) -> Sequence[AuthorityEffect]:
        """Bring an event to the core."""
        return self.core.step(event, self.now)

    def flush(self) -> None:
        """Append all changes."""
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
        for number, (name, keys) in enumerate(self.members, start=1):
            if self.step(SequencerOffered(number, name, keys, number)):
                raise RuntimeError(f"the authority refuses {keys} of {name}")
            if number % _BATCH == 0:
                self.flush()
        self.flush()
        return perf_counter() - began

    def report(self, batches: Iterable[ReportsReceived]) -> float:
        """Seconds to process all reports, and to append the changes of each batch."""
        began = perf_counter()
        for batch in batches:
            self.now += _BATCH
            if refused := self.step(batch):
                raise RuntimeError(f"the authority refuses a report: {refused[0]}")
            self.flush()
        return perf_counter() - began

    def random_reports(self, number: int, chance: random.Random) -> list[WatermarkReport]:
        """A new value of every interval, in any order. ``number``: of the round."""
        order = list(enumerate(self.members, start=1))
        chance.shuffle(order)
        base = number * 1_000_000
        return [
            WatermarkReport(name, keys, sequencer, base + chance.randrange(1_000_000))
            for sequencer, (name, keys) in order
        ]

    def move(self) -> float:
        """Seconds to accept a new owner of one interval, with its append."""
        count = len(self.members)
        began = perf_counter()
        for number in range(_CHANGES):
            self.step(SequencerOffered(0, *self.members[number], count + number + 1))
            self.flush()
        return (perf_counter() - began) / _CHANGES

    def split(self) -> float:
        """Seconds to accept both halves of one interval, with their append."""
        first = 2 * len(self.members)
        began = perf_counter()
        for number in range(_CHANGES):
            name, keys = self.members[-number - 2]
            halves = keys.split(keys.start + b"5")
            for half, sequencer in zip(halves, (first + 2 * number, first + 2 * number + 1), strict=True):
                self.step(SequencerOffered(0, name, half, sequencer))
            self.flush()
        return (perf_counter() - began) / _CHANGES

    def restart(self) -> tuple[float, int]:
        """Seconds to restore another shard from the newest base, and the base's bytes. Zeros: there is no base yet."""
        if not self.stored:
            return 0.0, 0
        parts = tuple(PartId(str(number), 1, 0) for number in range(len(self.stored)))
        fresh = AuthorityCore("authority.0", 2, JournalHead(2, 0, 0, parts))
        began = perf_counter()
        fresh.restore(self.stored, [])
        return perf_counter() - began, sum(map(len, self.stored))


def _one_by_one(reports: list[WatermarkReport]) -> list[ReportsReceived]:
    """Batches of reports, with an object for each."""
    return [ReportsReceived(reports[first : first + _BATCH]) for first in range(0, len(reports), _BATCH)]


def _by_columns(reports: list[WatermarkReport]) -> list[ReportsReceived]:
    """Batches of reports, as workers send them."""
    messages = [
        request_to_wire(reports[first : first + _BATCH], by_columns=True) for first in range(0, len(reports), _BATCH)
    ]
    return [ReportsReceived(columns=[columns_from_wire(one) for one in message.columns]) for message in messages]


def measure(intervals: int, rounds: int) -> list[Figure]:
    """The figures of a shard with so many intervals. Every interval reports ``rounds`` times."""
    bench = Bench(intervals)
    accepted = intervals / bench.own()
    chance, written = random.Random(1), 0.0
    rates: dict[str, list[float]] = {"reports_per_s": [], "columns_per_s": []}
    reports: list[WatermarkReport] = []
    for number in range(1, rounds + 1):
        for way, (name, batches) in enumerate((("reports_per_s", _one_by_one), ("columns_per_s", _by_columns))):
            reports = bench.random_reports(2 * number + way, chance)
            bench.appended_bytes = 0
            rates[name].append(intervals / bench.report(batches(reports)))
            written = bench.appended_bytes / intervals
    names = names_of(bench.members)
    if min(map(bench.core.broadcast, names)) != min(report.watermark for report in reports):
        raise RuntimeError("the least broadcast value is not the least reported one")
    again = intervals / bench.report(_by_columns(reports))
    one = reports[0]
    lone = [WatermarkReport(one.group, one.member, one.sequencer, 1 << 40 | number) for number in range(_LONE)]
    alone = bench.report(_one_by_one(lone)) / _LONE
    restored, base = bench.restart()
    found = {
        "intervals": (intervals, "intervals"),
        "computations": (len(names), "computations"),
        "accepted_per_s": (accepted, "intervals/s"),
        **{name: (max(runs), "reports/s") for name, runs in rates.items()},
        "unchanged_per_s": (again, "reports/s"),
        "lone_report_us": (alone * 1e6, "µs"),
        "journal_bytes_per_report": (written, "bytes"),
        "base_bytes_per_interval": (base / intervals, "bytes"),
        "restore_s": (restored, "s"),
        "move_us": (bench.move() * 1e6, "µs"),
        "split_us": (bench.split() * 1e6, "µs"),
    }
    return [
        Figure(f"authority.{name}", value, unit, tuple(rates.get(name, (value,))))
        for name, (value, unit) in found.items()
    ]
