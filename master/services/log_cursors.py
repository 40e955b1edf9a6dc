"""Whether the log of a stream keeps records for cursors. Its owner knows, and the master asks before it deletes one.

Invariant: without force, a log is deleted only if its owner has just said that this incarnation has no durable cursor.
Who could break it: a cursor that becomes durable between the answer and the transaction, some milliseconds later. Its
reader gets an error, and its next call begins another log.
"""

from __future__ import annotations

from typing import Final

from millwheel.master.replica import MasterReplica
from millwheel.master.services.streams import log_of
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.wording import named
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub

__all__ = ["incarnation_without_cursors"]

_OWNER_SECONDS: Final = 4.0
_MAX_NAMED: Final = 10


async def incarnation_without_cursors(replica: MasterReplica, known: Catalog, stream: str) -> IncarnationId:
    """Return the incarnation of a stream's log, which has no cursors. Empty if the stream has no log.

    Raises:
        RequestError: The log has cursors (FAILED_PRECONDITION), or its owner does not answer (UNAVAILABLE).
    """
    if stream not in known.logs:
        return IncarnationId("")
    try:
        log = log_of(known, stream)
        async with calling(log.address):
            stub = SubscriptionServiceStub(replica.observer.channel(log.address))
            request = wire.ListCursorsRequest(stream=stream, incarnation=log.incarnation)
            answer = await stub.ListCursors(request, timeout=_OWNER_SECONDS)
    except RequestError as error:
        raise RequestError(
            FailureCode.UNAVAILABLE,
            f"it is not known now whether the log of stream {stream!r} has cursors: {error.message}",
            "try again later, or delete it with its cursors by --force",
            reason="CURSORS_UNKNOWN",
        ) from error
    if answer.cursors:
        names = [one.cursor for one in answer.cursors]
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"the log of stream {stream!r} keeps records for the cursors {named(names, _MAX_NAMED)}",
            f"delete those that are not needed by `millwheel stream cursors delete {stream} CURSOR`, or all by --force",
            reason="LOG_HAS_CURSORS",
        )
    return log.incarnation
