"""Names on the command line: ``TOPOLOGY/COMPUTATION``."""

from __future__ import annotations

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.sdk.errors import did_you_mean

__all__ = ["incarnation_of", "split_place"]


def split_place(place: str) -> tuple[str, str]:
    """Split ``TOPOLOGY/COMPUTATION`` in two. RequestError (INVALID_ARGUMENT): ``place`` has another form."""
    topology, slash, computation = place.partition("/")
    if not topology or not slash or not computation or "/" in computation:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT, f"{place!r} names no computation", "write TOPOLOGY/COMPUTATION"
        )
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
