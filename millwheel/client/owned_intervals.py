"""Computations by name, ``TOPOLOGY/COMPUTATION``, and the owners of their keys."""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_map import interval_from_proto
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.sdk.errors import did_you_mean

__all__ = ["incarnation_of", "owned_interval", "owned_intervals", "owners_of", "split_computation_name"]


def split_computation_name(name: str) -> tuple[str, str]:
    """Split ``TOPOLOGY/COMPUTATION`` in two. RequestError (INVALID_ARGUMENT): ``name`` has another form."""
    topology, slash, computation = name.partition("/")
    if not topology or not slash or not computation or "/" in computation:
        raise RequestError(FailureCode.INVALID_ARGUMENT, f"{name!r} names no computation", "write TOPOLOGY/COMPUTATION")
    return topology, computation


def incarnation_of(record: catalog.TopologyRecord, computation: str) -> IncarnationId:
    """Return the incarnation id of a topology's computation.

    RequestError (NOT_FOUND): the topology has no such computation. The message suggests the most similar name.
    """
    found = record.incarnations.get(computation)
    if found:
        return found
    known = sorted(record.incarnations)
    raise RequestError(
        FailureCode.NOT_FOUND,
        f"topology {record.spec.name!r} has no computation {computation!r}{did_you_mean(computation, known)}",
        f"it has {', '.join(known)}" if known else "it has no computations: it declares sources alone",
        reason="COMPUTATION_UNKNOWN",
    )


def owned_interval(found: control.GetTopologyResponse, computation: str, key: bytes) -> catalog.IntervalRecord:
    """Return the interval that has a key of a computation, with its owner.

    RequestError: no worker owns the interval now (UNAVAILABLE), or the computation has no intervals any more
    (FAILED_PRECONDITION).
    """
    for interval in _intervals_of(found, computation):
        if key in interval_from_proto(interval.keys):
            return _with_owner(interval, computation)
    raise _without_intervals(found, computation)


def owned_intervals(found: control.GetTopologyResponse, computation: str) -> list[catalog.IntervalRecord]:
    """Return the intervals of a computation in the order of their keys. RequestError: as for ``owned_interval``."""
    intervals = [_with_owner(one, computation) for one in _intervals_of(found, computation)]
    if not intervals:
        raise _without_intervals(found, computation)
    return sorted(intervals, key=lambda one: one.keys.start)


def _intervals_of(found: control.GetTopologyResponse, computation: str) -> Iterator[catalog.IntervalRecord]:
    for record in found.interval_maps:
        if record.topology and record.computation == computation:
            yield from record.intervals


def _with_owner(interval: catalog.IntervalRecord, computation: str) -> catalog.IntervalRecord:
    if not interval.owner.address:
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"no worker owns the interval {interval_from_proto(interval.keys)} of {computation!r} now",
            "wait, or start a worker",
        )
    return interval


def _without_intervals(found: control.GetTopologyResponse, computation: str) -> RequestError:
    name = found.topology.spec.name
    return RequestError(
        FailureCode.FAILED_PRECONDITION, f"computation {computation!r} of topology {name!r} has no intervals any more"
    )


def owners_of(found: control.GetTopologyResponse) -> set[str]:
    """Return the addresses of all workers that own an interval of a topology."""
    return {interval.owner.address for record in found.interval_maps for interval in record.intervals}
