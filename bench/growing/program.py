"""The measured program: collections that grow, and a number to compare them with. Each key has one of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

import millwheel as mw

__all__ = ["KINDS", "Work", "growing"]

_SPREAD = 0x9E3779B1
"""Times this, modulo 2**32, consecutive numbers are far from each other."""
_FILLED_EVERY = 1_000
"""The numbers of a collection that is filled. Single elements come anywhere among them."""


class Work(msgspec.Struct):
    """What is done to the collection of a key: ``fill``, ``one`` or ``read``."""

    key: str
    what: str
    number: int
    """Of the first element."""
    count: int = 1
    size: int = 20
    """Of an element, in bytes."""

    @property
    def numbers(self) -> range:
        """The numbers of the elements that are filled."""
        return range(self.number * _FILLED_EVERY, (self.number + self.count) * _FILLED_EVERY, _FILLED_EVERY)

    def anywhere(self, length: int) -> int:
        """A number among those of a collection that is filled to this length."""
        return self.number * _SPREAD % 2**32 % (length * _FILLED_EVERY)


class Lists(mw.GrowingState):
    """A list."""

    items: mw.ListState[bytes]


class Maps(mw.GrowingState):
    """A map."""

    items: mw.MapState[int, bytes]


class Times(mw.GrowingState):
    """Elements by time."""

    items: mw.OrderedState[bytes]


class Append(mw.Computation[Work, Lists]):
    """Appends at the end."""

    def process_record(self, ctx: mw.Context[Lists], record: mw.Record[Work]) -> None:
        """Do the work."""
        work, items = record.value, ctx.state.items
        if work.what == "read":
            assert items[work.number % len(items)]
        else:
            items.extend(number.to_bytes(work.size, "big") for number in range(work.number, work.number + work.count))


class Put(mw.Computation[Work, Maps]):
    """Fills a map in the order of its keys, and then puts single elements anywhere."""

    def process_record(self, ctx: mw.Context[Maps], record: mw.Record[Work]) -> None:
        """Do the work."""
        work, items = record.value, ctx.state.items
        if work.what == "fill":
            for number in work.numbers:
                items[number] = bytes(work.size)
        else:
            items[work.anywhere(len(items))] = bytes(work.size)


class Add(mw.Computation[Work, Times]):
    """Fills a collection in the order of its times, and then adds single elements anywhere."""

    def process_record(self, ctx: mw.Context[Times], record: mw.Record[Work]) -> None:
        """Do the work."""
        work, items = record.value, ctx.state.items
        if work.what == "fill":
            for number in work.numbers:
                items.add(mw.Timestamp(number), bytes(work.size))
        else:
            items.add(mw.Timestamp(work.anywhere(len(items))), bytes(work.size))


class Count(mw.Computation[Work, int]):
    """Counts: what a record costs without a collection."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Work]) -> None:
        """Count the record."""
        ctx.state += 1


KINDS: Final[Mapping[str, type[mw.Computation[Work, Any]]]] = {
    "number": Count,
    "list": Append,
    "map": Put,
    "ordered": Add,
}
"""The computations, by the names that they have in the topology. The stream of each is ``to-NAME``."""

growing = mw.Topology("growing")
for _name, _computation in KINDS.items():
    growing.source(f"to-{_name}", Work)
    growing.add(_computation, name=_name, inputs={f"to-{_name}": mw.key("key")}, outputs={})
