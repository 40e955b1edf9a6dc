"""The first interval map of an incarnation: of a computation, or of a stream's log. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.master.assignment import IntervalAssigner
from millwheel.master.change_plan import PlanBuilder
from millwheel.model.incarnation import IncarnationId, new_incarnation, new_journal
from millwheel.model.interval_map import interval_to_proto
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["new_map"]


def new_map(
    builder: PlanBuilder,
    assigner: IntervalAssigner,
    base: str,
    topology: str,
    intervals: Sequence[KeyInterval],
    code: str | None,
    *,
    owned: bool = True,
) -> IncarnationId:
    """Write the interval map of a new incarnation, with owners if workers exist. Return its id.

    Args:
        builder: Draws the numbers, and takes the map.
        assigner: Chooses the owners.
        base: The name of the computation or log.
        topology: The topology. Empty: of a log.
        intervals: The keys of the intervals.
        code: The digest of the code. None: of a log, which runs none.
        owned: Whether the intervals get owners.
    """
    incarnation = new_incarnation(base, builder.draw())
    record = catalog.IntervalMapRecord(computation=base if topology else "", topology=topology)
    for keys in intervals:
        interval = record.intervals.add(keys=interval_to_proto(keys))
        interval.journal = new_journal(incarnation, builder.draw())
        if owned:
            assigner.assign(interval, code, builder)
    builder.put_map(incarnation, record)
    return incarnation
