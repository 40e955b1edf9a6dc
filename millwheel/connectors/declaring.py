"""How a source becomes two computations of a topology."""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

from millwheel.connectors.reading import FindSplits, ReadSplits, Timing
from millwheel.connectors.source import Source
from millwheel.model.time import Duration, Timestamp, seconds
from millwheel.sdk.declarations import NO_DURATION
from millwheel.sdk.keys import key
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import generic_arguments

__all__ = ["declare_source"]


_FIND_EVERY: Final = seconds(1)


def declare_source(
    topology: TopologyGraph,
    name: str,
    record_type: Any,
    source: Source[Any, Any],
    *,
    timestamp: str | Callable[[Any], Timestamp] | None = None,
    out_of_order: Duration = NO_DURATION,
    idle_after: Duration | None = None,
    find_every: Duration = _FIND_EVERY,
    bad: str | None = None,
) -> None:
    """Add the computations that read ``source`` into the stream ``name``. The options: see ``Topology.source``."""
    timing = Timing(int(out_of_order), None if idle_after is None else int(idle_after), int(find_every))
    splits, called = f"{name}.splits", re.sub("[^a-z0-9]+", "-", name).strip("-")
    topology.add(FindSplits(source, splits, timing), name=f"{called}-splits", inputs={})
    position = (generic_arguments(type(source), Source) or (Any, Any))[1]
    reads = ReadSplits[position]  # type: ignore[valid-type]
    time_of = attrgetter(timestamp) if isinstance(timestamp, str) else timestamp
    topology.add(
        reads(source, name, record_type, timing, time_of, bad), name=f"{called}-reader", inputs={splits: key("name")}
    )
