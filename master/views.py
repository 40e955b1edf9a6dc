"""The balancer's view, from the catalog and the workers' load reports. Pure."""

from __future__ import annotations

from millwheel.master.assignment import code_of
from millwheel.master.balancing import ClusterView, IntervalView, WorkerView
from millwheel.master.load_book import LoadBook
from millwheel.master.quotas import room_for_intervals
from millwheel.master.reshape_plans import SPLIT_BY_OPERATOR
from millwheel.model.catalog import ACTIVE_STATES, Catalog, incarnations_of
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.time import Duration, Timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["names_of", "view_of"]


def names_of(known: Catalog) -> dict[IncarnationId, tuple[str, str]]:
    """Return the topology and computation name of each incarnation in a running topology."""
    return {
        record.incarnations[one.name]: (name, one.name)
        for name, record in known.live_topologies()
        if record.state in ACTIVE_STATES
        for one in record.spec.computations
    }


def view_of(known: Catalog, book: LoadBook, now: Timestamp, fresh: Duration) -> ClusterView:
    """Return the view of the cluster.

    Workers without a load report within ``fresh`` neither give nor take intervals.
    """
    workers = tuple(
        WorkerView(name, record.package, book.workers[name].base)
        for name, record in sorted(known.workers.items())
        if book.is_fresh(name, now, fresh)
    )
    incarnations = [*names_of(known), *(log.incarnation for log in known.logs.values())]
    intervals: list[IntervalView] = []
    for incarnation in sorted(incarnations):
        interval_map, code = known.maps.get(incarnation), code_of(known, incarnation)
        intervals += [_interval(incarnation, code, one, book) for one in interval_map or ()]
    full = (one for _, one in known.live_topologies() if one.quota.intervals and room_for_intervals(known, one) < 1)
    return ClusterView(workers, tuple(intervals), frozenset(one for record in full for one in incarnations_of(record)))


def _interval(
    incarnation: IncarnationId, code: str | None, interval: catalog.IntervalRecord, book: LoadBook
) -> IntervalView:
    report = book.report_of(interval)
    load = None if report is None else report.load
    return IntervalView(
        journal=interval.journal,
        sequencer=interval.sequencer,
        incarnation=incarnation,
        keys=interval_from_proto(interval.keys),
        owner=interval.owner.worker_id,
        code=code,
        cost=book.cost(interval),
        busy=0.0 if load is None else load.busy,
        slow=0.0 if load is None else load.slow,
        records=0.0 if load is None else load.records_per_second,
        cached_bytes=0 if load is None else load.cached_bytes,
        count=0 if load is None else load.keys,
        sample=() if load is None else tuple(load.sample),
        # One that its owner cannot run has no load. It says nothing of the load that there would be.
        reported=load is not None and not load.absence,
        # An interval blocked by a damaged value stays where it is: another owner would read the same value.
        keeps_bounds=bool(interval.parents) or (load is not None and load.quarantined),
        backlog=None if report is None else report.pace,
        by_operator=interval.request_id.startswith(SPLIT_BY_OPERATOR),
    )
