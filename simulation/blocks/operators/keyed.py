"""Entries for steps that keep a state for each key: they depend on arrival, unless their records are ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import millwheel as mw
from simulation.blocks.operators.base import AGGREGATES, Flow, Operator, Row, chunks, made, operator
from simulation.blocks.records import Item

__all__: list[str] = []

_SPANS = (300_000, 1_000_000, 2_500_000)


def _keyed(flow: Flow, ordered: bool) -> Any:
    keyed = flow.all.key_by("a")
    return keyed.ordered_by_time(lambda item: item.ids[0] % 3) if ordered else keyed


def _duration(microseconds: int | None) -> mw.Duration | None:
    return None if microseconds is None else mw.Duration(microseconds)


def _in_order(rows: list[Row]) -> list[Row]:
    """The rows in the order that ``_keyed`` gives them: ties are decided by the remainder, then by the encoding."""
    return sorted(rows, key=lambda row: (row.at, row.ids[0] % 3, row.rank))


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

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (forget,) = arguments

        def collect(items: list[Item], item: Item) -> tuple[list[Item] | None, list[Item]]:
            items.append(Item(item.ids, item.a, "", item.tainted))
            return items if len(items) < forget else None, [made(items, str(len(items)))]

        _keyed(flow, self.ordered).update(flow.name, [], collect, Item, state=list[Item], **flow.options)


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
    repeats = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        return _prefixes(_in_order(rows), arguments[0])

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        expected = [one[:4] for one in self.model(rows, arguments)]
        if expected != (results := [one[:4] for one in found]):
            yield f"the results are {results}, and not {expected}"


class _Expiring(Operator):
    """Each result has all records of the key since it was forgotten."""

    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice(_SPANS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        def collect(items: list[Item], item: Item) -> tuple[list[Item], list[Item]]:
            items.append(Item(item.ids, item.a, "", item.tainted))
            return items, [made(items, str(len(items)))]

        keep = mw.Duration(arguments[0])
        _keyed(flow, self.ordered).update(flow.name, [], collect, Item, state=list[Item], keep=keep, **flow.options)


@operator("expiring update")
class _ExpiringUpdate(_Expiring):
    """Some order of the key's records gives the results. None is forgotten while others of its time may come."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        (keep,) = arguments
        places = {row.ids: row for row in rows}
        before: list[Row] = []
        for one in found:
            known = tuple(number for row in before for number in row.ids)
            if one.ids[: len(known)] != known or one.ids[len(known) :] not in places:
                if before and one.at < max(row.at for row in before) + keep:
                    yield f"update forgot {known} at {one}"
                known, before = (), []
            new = places.pop(one.ids[len(known) :], None)
            if new is None or (one.at, one.b) != (new.at, str(len(before) + 1)):
                yield f"update has {one} after {known}"
                return
            before.append(new)
        if places:
            yield f"update lacks {sorted(places)}"


@operator("ordered expiring update")
class _OrderedExpiringUpdate(_Expiring):
    ordered = True
    repeats = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        kept: list[Row] = []
        for row in _in_order(rows):
            if kept and row.at >= kept[-1].at + arguments[0]:
                kept = []
            kept.append(row)
            yield Row(row.at, tuple(one for other in kept for one in other.ids), row.a, str(len(kept)), True)


@operator("aggregate")
class _Running(Operator):
    """Each result has one record more than the one before."""

    certain = False

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
class _Latest(Operator):
    """Each record that passes is newer than the one before. The newest one passes."""

    certain = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((None, *_SPANS))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (keep,) = arguments
        flow.all.key_by("a").latest(flow.name, keep=_duration(keep), **flow.options)

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
class _Deduplicate(Operator):
    """One record of the key passes. With a time, records pass that are at least this time behind the one before."""

    certain = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((None, *_SPANS))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (within,) = arguments
        flow.all.key_by("a").deduplicate(flow.name, _duration(within), **flow.options)

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
        return [chance.choice(_SPANS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        _keyed(flow, ordered=True).deduplicate(flow.name, mw.Duration(arguments[0]), **flow.options)

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        forgotten = 0
        for row in _in_order(rows):
            if row.at >= forgotten:
                forgotten = row.at + arguments[0]
                yield row


def _crowded(times: list[int], count: int, per: int) -> bool:
    """Whether more than ``count`` records are less than ``per`` apart."""
    ordered = sorted(times)
    return any(later - earlier < per for earlier, later in zip(ordered, ordered[count:], strict=False))


class _Throttles(Operator):
    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((1, 2)), chance.choice(_SPANS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        count, per = arguments
        _keyed(flow, self.ordered).throttle(flow.name, count, mw.Duration(per), **flow.options)


@operator("throttle")
class _Throttle(_Throttles):
    """No more records pass than the limit allows. Those that are dropped would have exceeded it."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        dropped = Counter(row[:4] for row in rows)
        dropped.subtract(one[:4] for one in found)
        times = [one.at for one in found]
        if any(count < 0 for count in dropped.values()) or _crowded(times, *arguments):
            yield f"throttle passed {found}, of {rows}"
        if free := [row for row in dropped.elements() if not _crowded([*times, row[0]], *arguments)]:
            yield f"throttle dropped {free}, and there was room beside {found}"


@operator("ordered throttle")
class _OrderedThrottle(_Throttles):
    ordered = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        passed: list[Row] = []
        for row in _in_order(rows):
            if not _crowded([*(one.at for one in passed), row.at], *arguments):
                passed.append(row)
        return passed


class _Untils(Operator):
    """The records up to one whose first id is divisible."""

    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((2, 3, 5))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        (divisor,) = arguments
        _keyed(flow, self.ordered).until(flow.name, lambda item: item.ids[0] % divisor == 0, **flow.options)


@operator("until")
class _Until(_Untils):
    """In some order, all records come up to one that ends the key."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        (divisor,) = arguments
        if foreign := Counter(one[:4] for one in found) - Counter(row[:4] for row in rows):
            yield f"until passed {[*foreign.elements()]}, which did not come so often"
        ends = [row for row in rows if row.ids[0] % divisor == 0]
        if not ends and len(found) != len(rows):
            yield f"until passed {found}, and no record of {rows} ends the key"
        if ends and [one.ids[0] % divisor == 0 for one in found] != [*[False] * (len(found) - 1), True]:
            yield f"until passed {found}, whose last one alone should end the key"


@operator("ordered until")
class _OrderedUntil(_Untils):
    ordered = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        for row in _in_order(rows):
            yield row
            if row.ids[0] % arguments[0] == 0:
                return


class _CountWindows(Operator):
    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((1, 2, 3)), chance.choice((None, *_SPANS))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        size, within = arguments
        counted = _keyed(flow, self.ordered).count_window(size, within=_duration(within))
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
        for row in _in_order(rows):
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
