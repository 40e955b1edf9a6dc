"""Operators' view of a stream's durable cursors: list and delete them (section 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.client.control import ControlClient
from millwheel.client.subscription.log_link import log_address
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import subscription_pb2 as wire
from millwheel.rpc.v1.subscription_pb2_grpc import SubscriptionServiceStub

__all__ = ["CursorStatus", "delete_cursor", "list_cursors", "log_owner"]


@dataclass(frozen=True, slots=True)
class CursorStatus:
    """A durable cursor. Records below ``acked`` are processed. The stream's next record gets the offset ``end``."""

    stream: str
    name: str
    acked: int
    end: int


async def log_owner(client: ControlClient, stream: str) -> tuple[str, str, IncarnationId]:
    """The stream's full name, the address of the worker that owns its log, and the log's incarnation.

    The last two are empty if there is no log. None is created.
    """
    routing = await client.routing(stream)
    log = next((consumer for consumer in routing.consumers if consumer.log), None)
    if log is None:
        return routing.stream.name, "", IncarnationId("")
    address = log_address(routing.stream.name, log.intervals.intervals[0].owner.address)
    return routing.stream.name, address, log.incarnation


async def list_cursors(stream: str, client: ControlClient) -> list[CursorStatus]:
    """The durable cursors of a stream, ordered by name. A stream without a log has none."""
    stream, address, incarnation = await log_owner(client, stream)
    if not address:
        return []
    async with calling(address), open_channel(address) as channel:
        request = wire.ListCursorsRequest(stream=stream, incarnation=incarnation)
        answer = await SubscriptionServiceStub(channel).ListCursors(request, timeout=DEFAULT_DEADLINE_SECONDS)
    return [CursorStatus(one.stream, one.cursor, one.acked_offset, one.end_offset) for one in answer.cursors]


async def delete_cursor(stream: str, cursor: str, client: ControlClient) -> None:
    """Delete a durable cursor permanently. Records that only this cursor kept may be deleted too.

    Raises:
        RequestError: The stream has no such cursor (NOT_FOUND), or no worker owns the log (UNAVAILABLE).
    """
    stream, address, incarnation = await log_owner(client, stream)
    if not address:
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"stream {stream!r} has no cursor {cursor!r}",
            "list them with `millwheel stream cursors list`",
        )
    async with calling(address), open_channel(address) as channel:
        request = wire.DeleteCursorRequest(stream=stream, cursor=cursor, incarnation=incarnation)
        await SubscriptionServiceStub(channel).DeleteCursor(request, timeout=DEFAULT_DEADLINE_SECONDS)
