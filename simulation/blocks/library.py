"""The library's own windows in simulated topologies: the ids of each key and window, as an :class:`Item`.

:mod:`simulation.windowed` computes the expected results from the injected records alone.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Final

import msgspec

import millwheel as mw
from millwheel import agg, windows
from simulation.blocks.by_columns import add_by_columns
from simulation.blocks.records import Item

__all__ = ["LIBRARY", "add_library", "spans_of"]

LIBRARY: Final = "library"
"""The kind of such nodes in a plan. Arguments: shape, size or gap, every, offset, allowed lateness; microseconds."""


class Collected(msgspec.Struct):
    """The ids of a key's window, and whether one of them may be late."""

    ids: list[int] = []
    tainted: bool = False


def _add(collected: Collected, record: mw.Record[Item]) -> Collected:
    collected.ids += record.value.ids
    collected.tainted |= record.value.tainted
    return collected


def _merge(one: Collected, other: Collected) -> Collected:
    return Collected([*one.ids, *other.ids], one.tainted or other.tainted)


def _result(collected: Collected) -> Collected:
    return Collected(sorted(collected.ids), collected.tainted)


class Unpack(mw.Computation[windows.Result[Collected], None]):
    """Converts results to records; ``b`` contains the window and the revision."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[None], record: mw.Record[windows.Result[Collected]]) -> None:
        """Forward the result as a record."""
        result = record.value
        span = f"{result.start} {result.end} {result.revision}"
        ctx.produce(self.output, Item(result.value.ids, result.key, span, result.value.tainted))


def spans_of(item: Item) -> tuple[int, int, int]:
    """Start, end and revision of the window of an unpacked record."""
    start, end, revision = item.b.split()
    return int(start), int(end), int(revision)


def add_library(topology: mw.Topology, node: dict[str, Any]) -> None:
    """Add a library window over the node's stream, and the computation that unpacks its results."""
    shape, size, every, offset, lateness = node["arguments"]
    if shape == "columns":
        add_by_columns(topology, node)
        return
    name, output, too_late = node["name"], node["outputs"][0], node["outputs"][-1]
    ((source, field),) = node["inputs"].items()
    results = f"{name}-results"
    aggregator = agg.Aggregator(Collected, Collected, _add, _merge, _result, Collected)
    tumbling = windows.tumbling(mw.Duration(size), offset=mw.Duration(offset))
    if shape == "two_phase":
        windows.two_phase(
            topology,
            name,
            source=source,
            key_of=attrgetter(field),
            windows=tumbling,
            aggregator=aggregator,
            output=results,
            shards=3,
            allowed_lateness=mw.Duration(lateness),
            too_late=too_late,
        )
    else:
        computation: mw.Computation[Any, Any]
        if shape == "session":
            gap = windows.session(mw.Duration(size))
            computation = windows.SessionAggregate(gap, aggregator, output=results, too_late=too_late)
        else:
            sliding = windows.sliding(mw.Duration(size), mw.Duration(every), offset=mw.Duration(offset))
            assigner = sliding if shape == "sliding" else tumbling
            allowed = mw.Duration(lateness)
            computation = windows.Aggregate(
                assigner, aggregator, output=results, allowed_lateness=allowed, too_late=too_late
            )
        topology.add(computation, name=name, inputs={source: mw.key(field)})
    topology.add(Unpack(output), name=f"{name}-unpacked", inputs={results: mw.key("key")}, outputs={output: Item})
