"""Entries for steps that let some records of a key pass. Where the others have a stream, both come in one order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import compress
from random import Random
from typing import Any

import millwheel as mw
from millwheel.streams import Stream
from simulation.blocks.operators.base import (
    SPANS,
    UNREAD,
    Flow,
    Operator,
    Row,
    duration,
    in_order,
    keyed_by_a,
    made,
    operator,
)
from simulation.blocks.records import Item

__all__: list[str] = []

_PASSED = "passed"
_REST = "rest"
_FOREVER = 2**63


def _declare(flow: Flow, has_rest: bool, step: Callable[[str, str | None], Stream[Item]]) -> None:
    """Declare a step. ``step``: declares it, given its name and the stream of the rest.

    With the rest, what has passed and the rest are results that say which of both they are.
    """
    if not has_rest:
        step(flow.name, None)
        return
    first, others = f"{flow.name}-{_PASSED}", f"{flow.name}-{_REST}"
    passed = step(first, others)
    flow.topology.stream(first, Item, retention=UNREAD)
    rest = flow.topology.stream(others, Item, retention=UNREAD)
    marked = rest.map(lambda item: made([item], _REST), Item)
    passed.map(lambda item: made([item], _PASSED), Item).union(marked).named(flow.name)


def _chosen(rows: list[Row], passes: list[bool], has_rest: bool) -> list[Row]:
    """The results, where each record is known to pass or not."""
    if has_rest:
        return [row._replace(b=_PASSED if one else _REST) for row, one in zip(rows, passes, strict=True)]
    return list(compress(rows, passes))


def _torn(rows: list[Row], found: list[Row]) -> Iterator[str]:
    """Where the rest has a stream, each record has one result."""
    if Counter((row.at, row.ids) for row in rows) != Counter((one.at, one.ids) for one in found):
        yield f"what passed and the rest are {found}, of {rows}"


def _crowded(times: list[int], count: int, per: int) -> bool:
    """Whether more than ``count`` records are less than ``per`` apart."""
    ordered = sorted(times)
    return any(later - earlier < per for earlier, later in zip(ordered, ordered[count:], strict=False))


def _with_room(rows: list[Row], count: int, per: int) -> list[bool]:
    """Which rows pass a throttle, if they come in this order."""
    times: list[int] = []
    passes = []
    for row in rows:
        passes.append(not _crowded([*times, row.at], count, per))
        times += [row.at] if passes[-1] else []
    return passes


class _Throttles(Operator):
    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((1, 2)), chance.choice(SPANS), chance.random() < 0.7]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        count, per, excess = arguments
        keyed, per = keyed_by_a(flow, self.ordered), mw.Duration(per)
        _declare(flow, excess, lambda name, rest: keyed.throttle(name, count, per, excess=rest, **flow.options))


@operator("throttle")
class _Throttle(_Throttles):
    """No more records pass than the limit allows. The others would have exceeded it when they came."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        count, per, excess = arguments
        if excess:
            yield from _torn(rows, found)
            if found != (expected := _chosen(found, _with_room(found, count, per), has_rest=True)):
                yield f"throttle has {found}, and not {expected}"
            return
        dropped = Counter(row[:4] for row in rows)
        dropped.subtract(one[:4] for one in found)
        times = [one.at for one in found]
        if any(number < 0 for number in dropped.values()) or _crowded(times, count, per):
            yield f"throttle passed {found}, of {rows}"
        if free := [row for row in dropped.elements() if not _crowded([*times, row[0]], count, per)]:
            yield f"throttle dropped {free}, and there was room beside {found}"


@operator("ordered throttle")
class _OrderedThrottle(_Throttles):
    ordered = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        count, per, excess = arguments
        ordered = in_order(rows)
        return _chosen(ordered, _with_room(ordered, count, per), excess)


class _Untils(Operator):
    """The records up to one whose first id is divisible. After a time the key begins again."""

    ordered = False

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((2, 3, 5)), chance.choice((None, *SPANS)), chance.random() < 0.7]

    def forgets(self, arguments: list[Any]) -> bool:
        return arguments[1] is not None

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        divisor: int = arguments[0]
        _, keep, has_rest = arguments
        keyed, kept = keyed_by_a(flow, self.ordered), duration(keep)

        def last(item: Item) -> bool:
            return item.ids[0] % divisor == 0

        _declare(flow, has_rest, lambda name, rest: keyed.until(name, last, keep=kept, rest=rest, **flow.options))


@operator("until")
class _Until(_Untils):
    """In some order, all records come up to one that ends the key, and again from the end's time on."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        divisor, keep, rest = arguments
        if rest:
            yield from _torn(rows, found)
        elif foreign := Counter(one[:4] for one in found) - Counter(row[:4] for row in rows):
            yield f"until passed {[*foreign.elements()]}, which did not come so often"
        begins = 0
        for one in found:
            passes = not rest or one.b == _PASSED
            # A key that has ended begins again when the low watermark is there. Until then, no record passes.
            if (one.at < begins) if passes else not begins:
                yield f"until has {one} in {found}"
            if passes:
                ends = one.ids[0] % divisor == 0
                begins = 0 if not ends else _FOREVER if keep is None else one.at + keep
        if not any(row.ids[0] % divisor == 0 for row in found) and len(found) != len(rows):
            yield f"until passed {found}, of {rows}, and nothing ended the key"


@operator("ordered until")
class _OrderedUntil(_Untils):
    ordered = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        divisor, keep, rest = arguments
        ordered, begins, passes = in_order(rows), 0, []
        for row in ordered:
            passes.append(row.at >= begins)
            if passes[-1] and row.ids[0] % divisor == 0:
                begins = _FOREVER if keep is None else row.at + keep
        return _chosen(ordered, passes, rest)
