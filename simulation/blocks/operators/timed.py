"""Entries for windows with all their options, and for time-outs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

import millwheel as mw
from millwheel import agg, windows
from simulation.blocks.operators.base import AGGREGATES, UNREAD, Flow, Operator, Row, made, operator
from simulation.blocks.records import Item

__all__: list[str] = []


def _spans(row: Row, size: int, every: int) -> list[int]:
    """The ends of the windows that a record is in."""
    first = row.at // every * every
    return [start + size for start in range(first - size, first + 1, every) if start <= row.at < start + size]


def _windows(rows: list[Row], size: int, every: int) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        for end in _spans(row, size, every):
            found[end].append(row)
    return found


def _aggregated(rows: list[Row], at: int) -> Row:
    return Row(at, tuple(sorted(one for row in rows for one in row.ids)), rows[0].a, str(len(rows)), True)


class _Sliding(Operator):
    repeats = True

    def draw(self, chance: Random) -> list[Any]:
        size = chance.choice((1_000_000, 2_500_000))
        return [size, chance.choice((size, size // 2))]

    def windowed(self, flow: Flow, arguments: list[Any]) -> Any:
        """The records by window."""
        size, every = arguments[:2]
        return flow.all.key_by("a").window(windows.sliding(mw.Duration(size), mw.Duration(every)))


@operator("spread windows")
class _Spread(_Sliding):
    """One result for each window, although the operator spreads a key's records over several keys."""

    def draw(self, chance: Random) -> list[Any]:
        return [*super().draw(chance), chance.choice((0, 700_000))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        kept: dict[str, Any] = {"spread": 3, "allowed_lateness": mw.Duration(arguments[2])}
        self.windowed(flow, arguments).aggregate(flow.name, Item, options=flow.options, **kept, **AGGREGATES)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        return [_aggregated(group, end) for end, group in _windows(rows, *arguments[:2]).items()]


@operator("early windows")
class _EarlyWindows(_Sliding):
    """Each result of a window has more records than the one before. The last result has all."""

    certain = False
    by_clock = True

    def draw(self, chance: Random) -> list[Any]:
        return [*super().draw(chance), *chance.choice(((0, 1), (100_000, 1), (700_000, 1), (100_000, 3)))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        period = mw.Duration(arguments[2])
        early: dict[str, Any] = {"early": windows.every(period) if period else windows.each_change()}
        self.windowed(flow, arguments).aggregate(
            flow.name, Item, spread=arguments[3], options=flow.options, **early, **AGGREGATES
        )

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        size, every, period, _ = arguments
        groups = _windows(rows, size, every)
        results: dict[int, list[Row]] = defaultdict(list)
        for one in found:
            results[one.at].append(one)
        for end in sorted({*groups, *results}):
            revisions, group = results[end], groups.get(end, [])
            if not group or not revisions or revisions[-1][:4] != _aggregated(group, end)[:4]:
                yield f"the last result of the window to {end} is {revisions[-1:]}, of {group}"
                continue
            counts = [int(one.b) for one in revisions]
            changes = [*range(1, len(group) + 1), len(group)]
            if counts != changes if period == 0 else counts[:-1] != sorted(set(counts[:-1])):
                yield f"the results of the window to {end} have {counts} records, of {len(group)}"
            if any(not set(one.ids) <= set(two.ids) for one, two in pairwise(revisions)):
                yield f"a result of the window to {end} lacks what an earlier one has: {revisions}"


@operator("sessions")
class _Sessions(Operator):
    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((300_000, 1_000_000)), *chance.choice(((0, 1), (700_000, 1), (700_000, 3)))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        gap, lateness, spread = arguments
        windowed: Any = flow.all.key_by("a").window(windows.session(mw.Duration(gap)))
        kept = {"allowed_lateness": mw.Duration(lateness), "spread": spread}
        windowed.aggregate(flow.name, Item, options=flow.options, **kept, **AGGREGATES)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        gap = arguments[0]
        session: list[Row] = []
        for row in sorted(rows, key=lambda row: row.at):
            if session and row.at >= session[-1].at + gap:
                yield _aggregated(session, session[-1].at + gap)
                session = []
            session.append(row)
        if session:
            yield _aggregated(session, session[-1].at + gap)


@operator("early sessions")
class _EarlySessions(_Sessions):
    """Each result has a part of a session. A session's last result has the whole session."""

    certain = False
    by_clock = True

    def draw(self, chance: Random) -> list[Any]:
        gap, lateness, spread = super().draw(chance)
        return [gap, lateness, spread, chance.choice((0, 100_000, 700_000) if spread == 1 else (100_000, 700_000))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        gap, lateness, spread, period = arguments
        early = windows.every(mw.Duration(period)) if period else windows.each_change()
        windowed: Any = flow.all.key_by("a").window(windows.session(mw.Duration(gap)))
        kept = {"early": early, "allowed_lateness": mw.Duration(lateness), "spread": spread}
        windowed.aggregate(flow.name, Item, options=flow.options, **kept, **AGGREGATES)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        left = {one: session for session in self.model(rows, arguments) for one in session.ids}
        for one in found:
            session = left.get(one.ids[0])
            if session is None or not {*one.ids} <= {*session.ids} or one.at > session.at:
                yield f"an early result of sessions is {one}, of {session}"
                return
        last = {one.ids for one in found}
        if lacks := {session.ids for session in left.values()} - last:
            yield f"sessions lack their results: {lacks}"


class Ranked(msgspec.Struct):
    """A result with the best records of its window."""

    a: str
    ids: list[int]
    b: str
    tainted: bool
    best: list[Item]


@operator("top")
class _Top(_Sliding):
    """The two best records of each window. Its rows become records in a stream of their own."""

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        best = agg.top(2, by=lambda item: item.ids[0] % 7)
        windowed = self.windowed(flow, arguments)
        rows = windowed.aggregate(f"{flow.name}-rows", Ranked, best=best, options=flow.options, **AGGREGATES)
        flow.topology.stream(f"{flow.name}-rows", Ranked, retention=UNREAD)
        rows.map(lambda row: Item(made(row.best, "").ids, row.a, row.b, row.tainted), Item).named(flow.name)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        for end, group in _windows(rows, *arguments).items():
            best = sorted(group, key=lambda row: (-(row.ids[0] % 7), row.rank))[:2]
            yield Row(end, tuple(one for row in best for one in row.ids), group[0].a, str(len(group)), True)


@operator("timeout")
class _Timeout(Operator):
    """The last record before each silence."""

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((200_000, 700_000, 2_000_000))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        after = mw.Duration(arguments[0])
        flow.all.key_by("a").timeout(flow.name, after, lambda item: made([item], "silent"), Item, **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        (after,) = arguments
        for row in rows:
            if not any(row.rank < other.rank and other.at < row.at + after for other in rows):
                yield row._replace(at=row.at + after, b="silent")


@operator("clock timeout")
class _ClockTimeout(Operator):
    """The record that came last before each silence, by the wall clock."""

    certain = False
    by_clock = True

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((200_000, 700_000))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        after, clock = mw.Duration(arguments[0]), mw.TimeDomain.PROCESSING_TIME
        flow.all.key_by("a").timeout(
            flow.name, after, lambda item: made([item], "silent"), Item, domain=clock, **flow.options
        )

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        ids = [one.ids for one in found]
        if len(ids) != len(set(ids)) or not {row.ids for row in rows} >= set(ids) or (rows and not found):
            yield f"the last records before silences are {found}"
