"""Entries for states that are forgotten after a time: of a whole key, and of each element of a map."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random
from typing import Any, Final

import millwheel as mw
from simulation.blocks.operators.base import SPANS, Flow, Operator, Row, in_order, keyed_by_a, made, operator
from simulation.blocks.records import SEEN, Item

__all__: list[str] = []

_ELEMENTS: Final = 4
_TAKEN: Final = 0
"""The element that is taken out by every second of its records."""


class _Expiring(Operator):
    """Each result has all records of the key since it was forgotten."""

    ordered = False
    domain = mw.TimeDomain.EVENT_TIME

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice(SPANS)]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        def collect(items: list[Item], item: Item) -> tuple[list[Item], list[Item]]:
            items.append(Item(item.ids, item.a, "", item.tainted))
            return items, [made(items, str(len(items)))]

        times: Any = {"keep": mw.Duration(arguments[0]), "domain": self.domain}
        keyed_by_a(flow, self.ordered).update(flow.name, [], collect, Item, state=list[Item], **times, **flow.options)


@operator("expiring update")
class _ExpiringUpdate(_Expiring):
    """Some order of the key's records gives the results. None is forgotten while others of its time may come."""

    certain = False

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        keep = arguments[0] if self.domain is mw.TimeDomain.EVENT_TIME else 0
        places = {row.ids: row for row in rows}
        before: list[Row] = []
        for one in found:
            known = tuple(number for row in before for number in row.ids)
            if one.ids[: len(known)] != known or one.ids[len(known) :] not in places:
                if before and one.at < max(row.at for row in before) + keep and keep:
                    yield f"update forgot {known} at {one}"
                known, before = (), []
            new = places.pop(one.ids[len(known) :], None)
            if new is None or (one.at, one.b) != (new.at, str(len(before) + 1)):
                yield f"update has {one} after {known}"
                return
            before.append(new)
        if places:
            yield f"update lacks {sorted(places)}"


@operator("clock expiring update")
class _ClockExpiringUpdate(_ExpiringUpdate):
    """The results wait for nothing."""

    domain = mw.TimeDomain.PROCESSING_TIME


@operator("ordered expiring update")
class _OrderedExpiringUpdate(_Expiring):
    ordered = True
    repeats = multiplies = True

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        kept: list[Row] = []
        for row in in_order(rows):
            if kept and row.at >= kept[-1].at + arguments[0]:
                kept = []
            kept.append(row)
            yield Row(row.at, tuple(one for other in kept for one in other.ids), row.a, str(len(kept)), True)


class Remembered(mw.GrowingState):
    """The records of a key by element, and a copy of what there is: the end and the ids of each element."""

    copies: dict[int, tuple[int, list[int]]]
    known: mw.ExpiringMapState[int, tuple[int, Item]]


class Remember(mw.Computation[Item, Remembered]):
    """Collects records by elements, which end. Before each hook it compares the map with the copy (G2).

    An element and its largest timestamp are kept until ``keep`` after it, or after its arrival by the clock.
    """

    def __init__(self, output: str, keep: mw.Duration, domain: mw.TimeDomain, limit: int | None) -> None:
        self.output = output
        self.keep = keep
        self.domain = domain
        self.limit = limit

    def process_record(self, ctx: mw.Context[Remembered], record: mw.Record[Item]) -> None:
        """Add the record to its element, or take the element out with it."""
        self._compare(ctx)
        item, state = record.value, ctx.state
        element = item.ids[0] % _ELEMENTS
        at: int = max(record.timestamp, ctx.watermark)
        held = state.known.get(element)
        if held is not None:
            item, at = made([held[1], item], ""), max(at, held[0])
        if held is not None and element == _TAKEN:
            del state.known[element], state.copies[element]
            ctx.produce(self.output, made([item], "taken"), timestamp=mw.Timestamp(at))
        else:
            since = at if self.domain is mw.TimeDomain.EVENT_TIME else ctx.now
            state.known.put(element, (at, item), mw.Timestamp(since + self.keep))
            state.copies[element] = since + self.keep, item.ids
        self._arm(ctx)

    def process_timer(self, ctx: mw.Context[Remembered], timer: mw.Timer) -> None:
        """Produce the elements that have ended, perhaps only some of them."""
        self._compare(ctx)
        for element, (at, item) in ctx.state.known.expire(timer.timestamp, limit=self.limit):
            del ctx.state.copies[element]
            ends = at + self.keep if self.domain is mw.TimeDomain.EVENT_TIME else at
            ctx.produce(self.output, made([item], "ended"), timestamp=mw.Timestamp(ends))
        self._arm(ctx)

    def _arm(self, ctx: mw.Context[Remembered]) -> None:
        """Set the timer for the first end. By the clock it holds the least timestamp of all elements."""
        known = ctx.state.known
        ends = known.next_end()
        if ends is None:
            ctx.cancel_timer(domain=self.domain)
            del ctx.state
        elif self.domain is mw.TimeDomain.EVENT_TIME:
            ctx.set_timer(ends)
        else:
            ctx.set_timer(ends, domain=self.domain, hold=mw.Timestamp(min(at for at, _ in known.values())))

    def _compare(self, ctx: mw.Context[Remembered]) -> None:
        known, copies = ctx.state.known, ctx.state.copies
        ends = {element: (known.end_of(element), item.ids) for element, (_, item) in known.items()}
        first = min((end for end, _ in copies.values()), default=None)
        if ends != {element: (end, ids) for element, (end, ids) in copies.items()} or known.next_end() != first:
            SEEN.append(f"{self.output}: key {ctx.key} has {ends}, the first {known.next_end()}, and had {copies} (G2)")


class _Maps(Operator):
    """Each record is in one result of its element."""

    certain = False
    has_pages = True
    domain = mw.TimeDomain.EVENT_TIME

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice(SPANS), chance.choice((None, 1, 2))]

    def build(self, flow: Flow, arguments: list[Any]) -> None:
        keep, limit = arguments
        step = Remember(flow.name, mw.Duration(keep), self.domain, limit)
        flow.all.key_by("a").process(flow.name, step, {flow.name: Item}, **flow.options)

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        in_event_time = self.domain is mw.TimeDomain.EVENT_TIME
        result_of: dict[int, Row] = {number: one for one in found for number in one.ids}
        if Counter(number for row in rows for number in row.ids) != Counter(n for one in found for n in one.ids):
            yield f"the elements that ended are {found}, of {rows}"
            return
        members: dict[Row, list[Row]] = defaultdict(list)
        for row in sorted(rows):
            members[result_of[row.ids[0]]].append(row)
        for one, some in members.items():
            ends = some[-1].at + (arguments[0] if in_event_time and one.b == "ended" else 0)
            if one.at != ends or len({row.ids[0] % _ELEMENTS for row in some}) > 1:
                yield f"an element is {one}, of {some}"
        for element in range(_ELEMENTS) if in_event_time else ():
            mine = sorted(row for row in rows if row.ids[0] % _ELEMENTS == element != _TAKEN)
            for row, later in pairwise(mine):
                if later.at < row.at + arguments[0] and result_of[row.ids[0]] is not result_of[later.ids[0]]:
                    yield f"an element ended between {row} and {later}"


@operator("expiring map")
class _ExpiringMap(_Maps):
    """Records that are closer to each other than the time are together."""


@operator("clock expiring map")
class _ClockExpiringMap(_Maps):
    domain = mw.TimeDomain.PROCESSING_TIME
    by_clock = True
