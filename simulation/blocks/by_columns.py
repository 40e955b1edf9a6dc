"""Windows of sums, which a worker may keep by columns: the ids of each key and window, as bits of sums.

So an id that is missing shows, and one that was added twice becomes another one. Some records have an integer that no
column takes with others: the panes of their keys move to states. The results of some windows fail for a while.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

import millwheel as mw
from millwheel import agg, windows
from millwheel.agg.several import combined
from millwheel.windows.result import Row
from simulation.blocks.records import FAILED, Item

__all__ = ["add_by_columns"]

_SUMS: Final = [f"sum{number}" for number in range(16)]
_BITS: Final = 30
"""Each sum has the bits of so many ids. With all of them it is far from the end of the machine's integers."""
_LARGE: Final = 1 << 62
"""More than a column takes. A window has a few of them at most, so a state with their sum is still encoded."""
_FAILURES: Final = 3
"""How often the result of a window fails for each failing record in it. The delays double, and a run has an end."""

Packed: Any = msgspec.defstruct(
    "Packed",
    [
        *((name, str) for name in ("a", "b", "key")),
        *((name, int) for name in ("tainted", "number", "large", *_SUMS)),
    ],
    module=__name__,
)
"""An item as numbers."""


class Pack(mw.Computation[Item, None]):
    """Converts items to numbers, with one of their fields as the key."""

    def __init__(self, output: str, field: str, large: list[int]) -> None:
        self.output = output
        self.field = field
        self.large = large

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Item]) -> None:
        """Forward the item as numbers."""
        item, sums = record.value, dict.fromkeys(_SUMS, 0)
        for one in item.ids:
            sums[_SUMS[one // _BITS]] += 1 << one % _BITS
        large = sum(_LARGE for one in item.ids if one in self.large)
        key = getattr(item, self.field)
        ctx.produce(self.output, Packed(item.a, item.b, key, int(item.tainted), sum(item.ids), large, **sums))


class UnpackLate(mw.Computation[Packed, None]):
    """Converts records that were too late back to items."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Any]) -> None:
        """Forward the record as the item that it was."""
        packed = record.value
        ctx.produce(self.output, Item(_ids(packed), packed.a, packed.b, bool(packed.tainted)))


class Forward(mw.Computation[Item, None]):
    """Has results of windows, under keys of its own. It keeps the order of each key's windows."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Item]) -> None:
        """Forward the result, with an id that there is not if it came under the key of another one."""
        item = record.value
        right = ctx.key == _other_key(item)
        ctx.produce(self.output, item if right else Item([*item.ids, -1], item.a, item.b, item.tainted))


class Unpack:
    """Makes a result a record; ``b`` contains the window and the revision. Those of some records fail for a while."""

    def __init__(self, failing: list[int]) -> None:
        self.failing = failing

    def __call__(self, key: str, start: int, end: int, sums: Any, revision: int) -> Item:
        """The result, with an id that there is not if the mean or the count is wrong."""
        ids = _ids(sums)
        for one in ids:
            if one in self.failing and FAILED[-one] < _FAILURES:
                FAILED[-one] += 1
                raise ValueError(f"the result with record {one} fails for now")
        right = sums.records == len(ids) and round(sums.mean * len(ids)) == sum(ids)
        return Item(ids if right else [*ids, -1], key, f"{start} {end} {revision}", bool(sums.tainted))


def _other_key(result: Item) -> str:
    """A key that is never that of the window. All results of one key still go to one key, so they have an order."""
    return result.a[::-1] + "/"


def _ids(sums: Any) -> list[int]:
    return [_BITS * at + bit for at, name in enumerate(_SUMS) for bit in range(62) if getattr(sums, name) >> bit & 1]


def add_by_columns(topology: mw.Topology, node: dict[str, Any]) -> None:
    """Add tumbling windows of sums over the node's stream, and what converts records before them and after."""
    _, size, _, offset, _ = node["arguments"]
    name, output, too_late = node["name"], node["outputs"][0], node["outputs"][-1]
    result = Unpack(node["failing"])
    ((source, field),) = node["inputs"].items()
    packed, late = f"{name}-sums", f"{name}-late"
    aggregates: dict[str, Any] = {one: agg.sum(one) for one in (*_SUMS, "large")} | {"tainted": agg.max("tainted")}
    aggregates |= {"records": agg.count(), "mean": agg.mean("number")}
    tumbling = windows.tumbling(mw.Duration(size), offset=mw.Duration(offset))
    aggregator = combined(aggregates).bind(Packed)
    results = f"{name}-results" if node["keyed"] else output
    windowed = windows.Aggregate(tumbling, aggregator, output=results, too_late=late, row=Row(Item, result))
    topology.add(
        Pack(packed, field, node["large"]),
        name=f"{name}-packed",
        inputs={source: mw.key(field)},
        outputs={packed: Packed},
    )
    topology.add(windowed, name=name, inputs={packed: mw.key("key")})
    if node["keyed"]:
        other = mw.key(_other_key)
        topology.add(Forward(output), name=f"{name}-keyed", inputs={results: other}, outputs={output: Item})
    unpacked = {late: mw.key("key")}
    topology.add(UnpackLate(too_late), name=f"{name}-unpacked-late", inputs=unpacked, outputs={too_late: Item})
