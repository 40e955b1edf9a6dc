"""Entries for steps that keep a state for each key: they depend on arrival, unless their records are ordered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import millwheel as mw
from simulation.blocks.operators.base import (
    AGGREGATES,
    SPANS,
    Flow,
    KeepingOperator,
    Operator,
    Row,
    chunks,
    duration,
    in_order,
    keyed_by_a,
    made,
    operator,
)
from simulation.blocks.records import Item

__all__: list[str] = []


def _prefixes(rows: list[Row], forget: int) -> Iterator[Row]:
    for chunk in chunks(rows, forget):
        for end in range(1, len(chunk) + 1):
            part = chunk[:end]
            yield Row(part[-1].at, tuple(one for row in part for one in row.ids), part[0].a, str(end), True)


class _Updates(Operator):
    """Each result has all records of the key so far. After ``forget`` of them the state is forgotten."""

    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((2, 4, 1_000))]

    def forgets(self, arguments: list[Any]) -> bool:
        return False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (forget,) = arguments

        def collect(items: list[Item], item: Item) -> tuple[list[Item] | None, list[Item]]:
            items.append(Item(item.ids, item.a, "", item.tainted))
            return items if len(items) < forget else None, [made(items, str(len(items)))]

        keyed_by_a(flow, self.ordered).update(flow.name, [], collect, Item, state=list[Item], **flow.options)


@operator("update")
class _Update(_Updates):
    """Some order of the key's records gives the results, and they come in this order (G15)."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        (forget,) = arguments
        places = {row.ids: row for row in rows}
        before: tuple[int, ...] = ()
        order: list[Row] = []
        for one in found:
            new = one.ids[len(before) :]
            if one.ids[: len(before)] != before or new not in places:
                yield f"update has {one.ids} after {before}"
                return
            order.append(places.pop(new))
            before = () if one.b == str(forget) else one.ids
        if places:
            yield f"update lacks {sorted(places)}"
        elif [one[:4] for one in _prefixes(order, forget)] != [one[:4] for one in found]:
            yield f"the results {found} are not those of {order}"


@operator("ordered update")
class _OrderedUpdate(_Updates):
    ordered = True
    repeats = multiplies = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        return _prefixes(in_order(rows), arguments[0])

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        expected = [one[:4] for one in self.model(rows, arguments)]
        if expected != (results := [one[:4] for one in found]):
            yield f"the results are {results}, and not {expected}"


@operator("aggregate")
class _Running(Operator):
    """Each result has one record more than the one before."""

    certain = False

    def forgets(self, arguments: list[Any]) -> bool:
        return False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        flow.all.key_by("a").aggregate(flow.name, Item, options=flow.options, **AGGREGATES)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        left = {row.ids: row for row in rows}
        before: set[int] = set()
        for number, one in enumerate(found, 1):
            new = left.pop(tuple(sorted(set(one.ids) - before)), None)
            if new is None or len(one.ids) != len(before) + len(new.ids) or (one.at, one.b) != (new.at, str(number)):
                yield f"result {number} of the aggregate is {one}, after {sorted(before)}"
                return
            before = set(one.ids)
        if left:
            yield f"the aggregate lacks {sorted(left)}"


@operator("latest")
class _Latest(KeepingOperator):
    """Each record that passes is newer than the one before. The newest one passes."""

    certain = False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (keep,) = arguments
        flow.all.key_by("a").latest(flow.name, keep=duration(keep), **flow.options)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        if foreign := {one[:4] for one in found} - {row[:4] for row in rows}:
            yield f"latest passed {foreign}, which did not come"
        ranks = [one.rank for one in found]
        if any(one >= two for one, two in pairwise(ranks)):
            yield f"latest passed older records after newer ones: {found}"
        newest = max((row.rank for row in rows), default=None)
        if newest != (ranks[-1] if ranks else None):
            yield f"the newest record is {newest}, and latest passed {ranks[-1:]}"


@operator("deduplicate")
class _Deduplicate(KeepingOperator):
    """One record of the key passes. With a time, records pass that are at least this time behind the one before."""

    certain = False

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (within,) = arguments
        flow.all.key_by("a").deduplicate(flow.name, duration(within), **flow.options)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        (within,) = arguments
        if foreign := {one[:4] for one in found} - {row[:4] for row in rows}:
            yield f"deduplicate passed {foreign}, which did not come"
        if rows and not found:
            yield "deduplicate passed no record"
        for one, two in pairwise(found):
            if within is None or two.at < one.at + within:
                yield f"deduplicate passed {two} after {one}"


@operator("ordered deduplicate")
class _OrderedDeduplicate(Operator):
    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice(SPANS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        keyed_by_a(flow, ordered=True).deduplicate(flow.name, mw.Duration(arguments[0]), **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        forgotten = 0
        for row in in_order(rows):
            if row.at >= forgotten:
                forgotten = row.at + arguments[0]
                yield row


class _CountWindows(Operator):
    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((1, 2, 3)), chance.choice((None, *SPANS))]

    def forgets(self, arguments: list[Any]) -> bool:
        return arguments[1] is not None

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        size, within = arguments
        counted = keyed_by_a(flow, self.ordered).count_window(size, within=duration(within))
        counted.aggregate(flow.name, Item, options=flow.options, **AGGREGATES)


@operator("count window")
class _CountWindow(_CountWindows):
    """The windows have all records once. Only windows whose time is over are not full."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        size, within = arguments
        times = {one: row.at for row in rows for one in row.ids}
        windowed = [one for result in found for one in result.ids]
        if len(windowed) != len(set(windowed)) or not times.keys() >= set(windowed):
            yield f"windows of {size} have records twice, or from nowhere: {found}"
            return
        if within is None and len(found) != len(rows) // size:
            yield f"there are {len(found)} windows of {size}, and {len(rows)} records"
        if within is not None and len(windowed) != len(times):
            yield f"windows lack records {sorted(times.keys() - set(windowed))}"
        for one in found:
            members, last = sum(row.ids[0] in one.ids for row in rows), max(times[number] for number in one.ids)
            if one.b != str(members) or (one.at != last if members == size else within is None or one.at < last):
                yield f"the window {one} has {members} records up to {last}"


@operator("ordered count window")
class _OrderedCountWindow(_CountWindows):
    ordered = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        size, within = arguments
        window: list[Row] = []
        for row in in_order(rows):
            if window and within is not None and window[0].at + within <= row.at:
                yield _closed(window, max(window[-1].at, window[0].at + within))
                window = []
            window.append(row)
            if len(window) == size:
                yield _closed(window, row.at)
                window = []
        if window and within is not None:
            yield _closed(window, max(window[-1].at, window[0].at + within))


def _closed(window: list[Row], at: int) -> Row:
    return Row(at, tuple(sorted(one for row in window for one in row.ids)), window[0].a, str(len(window)), True)


@operator("complete")
class _Complete(Operator):
    """All records of one timestamp. They come sorted."""

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        keyed = flow.all.key_by("a")
        keyed.complete(flow.name, lambda group: [made(group, str(len(group)))], Item, **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        for at in {row.at for row in rows}:
            group = sorted((row for row in rows if row.at == at), key=lambda row: row.rank)
            ids = tuple(one for row in group for one in row.ids)
            yield Row(at, ids, rows[0].a, str(len(group)), True)
