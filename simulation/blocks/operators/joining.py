"""Entries for joins. The model of each is a loop over all pairs of a key's records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from random import Random
from typing import Any

import millwheel as mw
from millwheel import windows
from simulation.blocks.operators.base import Flow, Operator, Row, duration, made, operator, paired
from simulation.blocks.records import Item

__all__ = ["OUTER", "JoinAsOf", "JoinLatest", "pair_of", "sides_of"]

OUTER = ("", "left", "right", "both")
_SPANS = (300_000, 1_000_000)
_LATENESS = (0, 700_000)


def sides_of(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The left rows and the right rows."""
    return [row for row in rows if row.left], [row for row in rows if not row.left]


def pair_of(left: Row | None, right: Row | None, at: int) -> Row:
    """The result of a pair, as :func:`paired` makes it."""
    ids = [() if one is None else one.ids for one in (left, right)]
    either = left or right
    assert either is not None
    return Row(at, (*ids[0], *ids[1]), either.a, f"{len(ids[0])}+{len(ids[1])}", True)


@operator("join")
class _Join(Operator):
    """A time of None means for ever."""

    repeats = multiplies = True

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((None, *_SPANS))]

    def forgets(self, arguments: list[Any]) -> bool:
        return arguments[0] is not None

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        left, right = flow.sides()
        left.join(flow.name, right, paired, keep=duration(arguments[0]), **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        (keep,) = arguments
        left, right = sides_of(rows)
        pairs = [(one, other) for one in left for other in right if keep is None or abs(one.at - other.at) <= keep]
        return [pair_of(one, other, max(one.at, other.at)) for one, other in pairs]


@operator("join within")
class _JoinWithin(Operator):
    repeats = multiplies = True

    def draw(self, chance: Random) -> list[Any]:
        before, after = chance.choice((0, 300_000, 1_500_000, -200_000)), chance.choice((200_000, 1_000_000))
        return [before, after, chance.choice(OUTER)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        before, after, outer = arguments
        times = {"before": mw.Duration(before), "after": mw.Duration(after)}
        left, right = flow.sides()
        left.join_within(flow.name, right, paired, **times, outer=outer, **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        before, after, outer = arguments
        left, right = sides_of(rows)
        pairs = [(one, other) for one in left for other in right if -before <= other.at - one.at <= after]
        yield from (pair_of(one, other, max(one.at, other.at)) for one, other in pairs)
        met = {one for pair in pairs for one in pair}
        yield from (pair_of(one, None, one.at) for one in left if outer in ("left", "both") and one not in met)
        yield from (pair_of(None, one, one.at) for one in right if outer in ("right", "both") and one not in met)


@operator("join as of")
class JoinAsOf(Operator):
    repeats = True

    def draw(self, chance: Random) -> list[Any]:
        return [chance.random() < 0.5]

    def forgets(self, arguments: list[Any]) -> bool:
        return False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        left, right = flow.sides()
        left.join_as_of(flow.name, right, paired, outer=arguments[0], **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        left, right = sides_of(rows)
        for one in left:
            held = max((other for other in right if other.at <= one.at), key=lambda row: row.rank, default=None)
            if held is not None or arguments[0]:
                yield pair_of(one, held, one.at)


@operator("join latest")
class JoinLatest(Operator):
    """Some order of the key's records gives the results: a right record that another one has replaced is gone."""

    certain = False
    keeps_briefly = False
    """Whether right records are forgotten after a time."""

    def draw(self, chance: Random) -> list[Any]:
        return [chance.random() < 0.5]

    def forgets(self, arguments: list[Any]) -> bool:
        return self.keeps_briefly

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        left, right = flow.sides()
        left.join_latest(flow.name, right, paired, outer=arguments[0], **flow.options)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        left, right = sides_of(rows)
        possible = {pair_of(one, other, one.at)[:4]: (one, other) for one in left for other in (None, *right)}
        if unknown := [one for one in found if one[:4] not in possible]:
            yield f"pairs from nowhere: {unknown}"
            return
        pairs = [possible[one[:4]] for one in found]
        counted = Counter(one for one, _ in pairs)
        if twice := [one for one, count in counted.items() if count > 1]:
            yield f"left records have met twice: {twice}"
        if arguments[0] and (lost := set(left) - counted.keys()):
            yield f"left records are lost: {lost}"
        if not arguments[0] and any(other is None for _, other in pairs):
            yield f"left records came without a right one: {pairs}"
        runs = [other for other, _ in groupby(other for _, other in pairs)]
        if self.keeps_briefly:
            runs = [one for one, _ in groupby(one for one in runs if one is not None)]
        if len(runs) != len(set(runs)) or None in runs[1:]:
            yield f"right records came back: {runs}"


@operator("join latest for a time")
class _JoinLatestForATime(JoinLatest):
    """A right record that is forgotten may leave left records alone."""

    keeps_briefly = True

    def draw(self, chance: Random) -> list[Any]:
        return [*super().draw(chance), chance.choice(_SPANS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        outer, keep = arguments
        left, right = flow.sides()
        left.join_latest(flow.name, right, paired, outer=outer, keep=mw.Duration(keep), **flow.options)


@operator("cogroup")
class _CoGroup(Operator):
    """The records of both sides in each window."""

    repeats = True

    def draw(self, chance: Random) -> list[Any]:
        size = chance.choice((1_000_000, 2_500_000))
        return [size, chance.choice((size, size // 2)), chance.choice(_LATENESS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        size, every, lateness = map(mw.Duration, arguments)
        left, right = flow.sides()
        windowed = left.window(windows.sliding(size, every))
        windowed.cogroup(flow.name, right, _both_sides, Item, allowed_lateness=lateness, **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        size, every, _ = arguments
        for end in {(row.at // every + shift) * every for row in rows for shift in range(1, size // every + 1)}:
            inside = sorted((row for row in rows if end - size <= row.at < end), key=lambda row: row.rank[1:])
            left, right = sides_of(inside)
            if inside:
                ids = tuple(one for row in (*left, *right) for one in row.ids)
                yield Row(end, ids, inside[0].a, f"{len(left)}/{len(right)}", True)


def _both_sides(left: list[Item], right: list[Item]) -> list[Item]:
    return [made([*left, *right], f"{len(left)}/{len(right)}")]


@operator("window join")
class _WindowJoin(Operator):
    repeats = multiplies = True

    def draw(self, chance: Random) -> list[Any]:
        size = chance.choice((1_000_000, 2_500_000))
        return [size, chance.choice((size, size // 2)), chance.choice(OUTER), chance.choice(_LATENESS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        size, every, outer, lateness = arguments
        left, right = flow.sides()
        windowed: Any = left.window(windows.sliding(mw.Duration(size), mw.Duration(every)))
        kept = {"outer": outer, "allowed_lateness": mw.Duration(lateness)}
        windowed.join(flow.name, right, paired, **kept, **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        size, every, outer, _ = arguments
        for end in sorted({(row.at // every + shift) * every for row in rows for shift in range(1, size // every + 1)}):
            left, right = sides_of([row for row in rows if end - size <= row.at < end])
            yield from (pair_of(one, other, end) for one in left for other in right)
            yield from (pair_of(one, None, end) for one in left if outer in ("left", "both") and not right)
            yield from (pair_of(None, one, end) for one in right if outer in ("right", "both") and not left)
