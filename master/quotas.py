"""What a topology may take of the cluster: its quota, checked where intervals are made."""

from __future__ import annotations

import math
from typing import Final

from millwheel.model.catalog import Catalog, incarnations_of
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["check_intervals", "check_quota", "room_for_intervals"]

_WEIGHTS: Final = (0.01, 100.0)
"""The smallest and the largest weight. A topology with a smaller one would seem to stand still."""


def check_quota(quota: catalog.TopologyQuota) -> None:
    """Raise INVALID_ARGUMENT if no topology could have this quota."""
    least, most = _WEIGHTS
    if quota.weight and not (math.isfinite(quota.weight) and least <= quota.weight <= most):
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"a weight of {quota.weight:g} is not between {least:g} and {most:g}",
            "1 is the weight of a topology without a quota; 2 gets twice its time",
            reason="QUOTA_INVALID",
        )


def room_for_intervals(known: Catalog, record: catalog.TopologyRecord) -> float:
    """How many more intervals the computations of a topology may have."""
    if not record.quota.intervals:
        return math.inf
    maps = (known.maps.get(incarnation) for incarnation in incarnations_of(record))
    return record.quota.intervals - sum(len(one.intervals) for one in maps if one is not None)


def check_intervals(known: Catalog, record: catalog.TopologyRecord, more: int) -> None:
    """Raise RESOURCE_EXHAUSTED if ``more`` intervals are too many for the topology."""
    room = room_for_intervals(known, record)
    if more > max(0.0, room):
        name, allowed = record.spec.name, record.quota.intervals
        raise RequestError(
            FailureCode.RESOURCE_EXHAUSTED,
            f"topology {name!r} may have {allowed} intervals, and would have {round(allowed - room) + more}",
            f"merge some, or let an operator allow more: `millwheel topology quota {name} --intervals NUMBER`",
            reason="QUOTA_EXCEEDED",
        )
