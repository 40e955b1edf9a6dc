"""The base of entries for operators: how a topology uses an operator, and the results that it must produce."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

import millwheel as mw
from millwheel import agg
from millwheel.streams import Stream
from millwheel.streams.steps import Branch
from simulation.blocks.records import Item

__all__ = [
    "AGGREGATES",
    "OPERATORS",
    "SPANS",
    "UNREAD",
    "Flow",
    "Operator",
    "Row",
    "chunks",
    "compared",
    "duration",
    "in_order",
    "keyed_by_a",
    "made",
    "operator",
    "paired",
]

SPANS: Final = (300_000, 1_000_000, 2_500_000)
"""How long operators keep something, in microseconds."""


class Row(NamedTuple):
    """A record, as models compute with it. The key is ``a``."""

    at: int
    ids: tuple[int, ...]
    a: str
    b: str
    left: bool
    """The record's side of a join."""
    late: bool = False
    """Whether it was late at its stream, or came from a record that was. So it may be late at any step (G14)."""

    @property
    def rank(self) -> tuple[Any, ...]:
        """The order of a key's records: by timestamp, then by encoding. An encoding begins with the ids."""
        return self.at, len(self.ids), self.ids, len(self.b), self.b


@dataclass(frozen=True, slots=True)
class Flow:
    """The inputs of an operator. Its results are :class:`Item` on the stream ``name``. Keys are the field ``a``."""

    topology: mw.Topology
    name: str
    streams: list[str]
    """One stream or two. :meth:`sides` returns two unchanged."""
    field: str
    """The field of their records that becomes ``a``."""
    options: Any
    """The options of the step: which stream gets late records."""

    @property
    def all(self) -> Stream[Item]:
        """The records of all streams."""
        first, *more = [self._keyed(stream) for stream in self.streams]
        return first.union(*more) if more else first

    def sides(self) -> tuple[Any, Any]:
        """The records of both sides of a join, with their key. One stream is divided by its records' ids."""
        if len(self.streams) == 2:
            left, right = (self._keyed(stream) for stream in self.streams)
        else:
            stream = self._keyed(self.streams[0])
            stream = stream if self.field == "a" else stream.named(f"{self.name}-in")
            left, right = stream.split(lambda item: sum(item.ids) % 2 == 0)
        return left.key_by("a"), right.key_by("a")

    def _keyed(self, stream: str) -> Stream[Item]:
        found: Stream[Item] = Stream(self.topology, (Branch(stream),), Item)
        return found if self.field == "a" else found.map(_exchanged, Item)


def _exchanged(item: Item) -> Item:
    return Item(item.ids, item.b, item.a, item.tainted)


class Operator(ABC):
    """An entry for one operator. The arguments are what ``draw`` has drawn, after JSON.

    Invariant: the models know only the rows. They share no code with the product.
    """

    certain = True
    """Whether the results depend on the records alone, and not on the order in which they arrive."""
    repeats = False
    """Whether several results of a key may have the same ids."""
    multiplies = False
    """Whether n records of a key may have n² results. A pipeline has one such operator at most."""
    by_clock = False
    """Whether results wait for a time of the wall clock."""
    has_options = True
    """Whether the step can divert late records."""
    has_letters = False
    """Whether the step gives records up as dead letters."""
    has_pages = False
    """Whether the state grows."""

    def draw(self, chance: Random) -> list[Any]:
        """Draw the arguments."""
        return []

    def forgets(self, arguments: list[Any]) -> bool:
        """Whether no key has a state once all input has ended, and all timers have fired."""
        return True

    @abstractmethod
    def build(self, flow: Flow, arguments: list[Any]) -> None:
        """Add the operator to the flow's topology."""

    def model(self, rows: list[Row], arguments: list[Any]) -> Iterable[Row]:
        """The results of one key's records. An operator whose results are not ``certain`` has a ``judge`` instead."""
        return ()

    def judge(self, rows: list[Row], found: list[Row], arguments: list[Any]) -> Iterator[str]:
        """The violations in the results of one key's records, which are in the order of arrival."""
        yield from compared(self.model(rows, arguments), found)


class KeepingOperator(Operator):
    """An operator whose only argument is how long it knows a key. None: for ever."""

    def draw(self, chance: Random) -> list[Any]:
        return [chance.choice((None, *SPANS))]

    def forgets(self, arguments: list[Any]) -> bool:
        return arguments[0] is not None


def compared(due: Iterable[Row], found: Iterable[Row]) -> Iterator[str]:
    """The violations in results that are known."""
    expected, results = (Counter(one[:4] for one in some) for some in (due, found))
    if expected != results:
        yield f"lacks results {[*(expected - results).elements()]}, and has {[*(results - expected).elements()]}"


UNREAD: Final = mw.Retention(bytes=1)
"""What the log of a stream keeps that has no subscriber, and perhaps no consumer, so that it never fills up."""

OPERATORS: Final[dict[str, Operator]] = {}
"""The entries by their names. A plan draws from all of them."""


def operator(name: str) -> Any:
    """Register a class as the entry of a name."""

    def register(kind: type[Operator]) -> type[Operator]:
        assert name not in OPERATORS, name
        OPERATORS[name] = kind()
        return kind

    return register


def made(items: Iterable[Item | None], b: str) -> Item:
    """The common result of several records."""
    given = [one for one in items if one is not None]
    return Item([one for item in given for one in item.ids], given[0].a, b, any(item.tainted for item in given))


def paired(left: Item | None, right: Item | None) -> Item:
    """The result of a join."""
    return made((left, right), f"{0 if left is None else len(left.ids)}+{0 if right is None else len(right.ids)}")


def keyed_by_a(flow: Flow, ordered: bool) -> Any:
    """All records by their key, perhaps in the order of their timestamps; see :func:`in_order`."""
    keyed = flow.all.key_by("a")
    return keyed.ordered_by_time(lambda item: item.ids[0] % 3) if ordered else keyed


def in_order(rows: list[Row]) -> list[Row]:
    """The rows in the order of ``keyed_by_a``: ties are decided by the remainder, then by the encoding."""
    return sorted(rows, key=lambda row: (row.at, row.ids[0] % 3, row.rank))


def duration(microseconds: int | None) -> mw.Duration | None:
    """The duration of an argument."""
    return None if microseconds is None else mw.Duration(microseconds)


def chunks(rows: list[Row], size: int) -> list[list[Row]]:
    """The rows in groups of ``size``. The last group may have fewer."""
    return [rows[first : first + size] for first in range(0, len(rows), size)]


def _counted(a: int, b: int) -> int:
    return a + b


AGGREGATES: Final[dict[str, agg.Aggregator[Any, Any]]] = {
    "ids": agg.Aggregator(
        list[int], list, lambda ids, record: [*ids, *record.value.ids], lambda a, b: [*a, *b], sorted, list[int]
    ),
    "b": agg.Aggregator(int, int, lambda count, _: count + 1, _counted, str, str),
    "tainted": agg.Aggregator(bool, bool, lambda any, record: any or record.value.tainted, bool.__or__, bool, bool),
}
"""The aggregates of a result: all ids, the number of records as text, and whether one may be late."""
