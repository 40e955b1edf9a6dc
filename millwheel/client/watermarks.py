"""The client of one shard of the low watermark authority, for workers and injectors (5.2, 7.2).

Reports are idempotent: only the newest report of each interval counts. So the client keeps only that one. It sends the
report after a change, and again after a reconnect. A watch survives reconnects, and its values never fall.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import grpc

from millwheel.client.watermark_streams import PendingOf, ReportStream, connected, nothing_reported, watch_watermarks
from millwheel.model.backoff import Backoff
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, PASSING, open_channel, retrying
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import (
    MEMBER_UNKNOWN,
    REPORT_NOT_RECEIVED,
    SEQUENCER_REFUSED,
    AcceptRefusedError,
    BroadcastUpdate,
    Member,
    ReportNotReceivedError,
    WatermarkReport,
    interval_to_wire,
)

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub

__all__ = ["Address", "WatermarkClient", "client_is_closed"]

Address: TypeAlias = str | Callable[[], Awaitable[str]]
"""``host:port`` of the shard, or a function that finds the current address before every attempt to connect."""


class WatermarkClient:
    """A client of one shard. Use it as an async context manager. Reports are sent inside it.

    ``on_refused``: called with a report whose sequencer is out of date; the caller must drop the interval.
    ``pending_of``: returns the pending work of a group's members, when the authority requests it.
    ``coalesce``: the least number of seconds between two messages. Under load a watermark changes with every record,
    and a message for each change would cost both sides as much as the record.
    ``refresh``: seconds after which every value is sent again. So the authority can distinguish an interval without
    changes from one that does not report.
    """

    def __init__(
        self,
        address: Address,
        *,
        on_refused: Callable[[WatermarkReport], None],
        pending_of: PendingOf = nothing_reported,
        coalesce: float = 0.02,
        refresh: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        self._address = address
        self._backoff = backoff or Backoff()
        self._channels: dict[str, tuple[grpc.aio.Channel, WatermarkServiceAsyncStub]] = {}
        self._closed = False
        self.reports = ReportStream(
            self._stub,
            self._accept_again,
            on_refused,
            pending_of=pending_of,
            coalesce=coalesce,
            refresh=refresh,
            backoff=self._backoff,
        )

    async def __aenter__(self) -> WatermarkClient:
        self.start()
        return self

    def start(self) -> None:
        """Start to send reports, until :meth:`close`."""
        self.reports.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reports and close the connection."""
        self._closed = True
        await self.reports.close()
        for channel, _ in self._channels.values():
            await channel.close(None)
        self._channels.clear()

    async def follow(self) -> None:
        """Check whether the shard has moved. If so, close the old connection, so that all its users reconnect.

        The old server may be paused or unreachable, and then never ends the connection itself. RequestError if the
        shard's address is unknown.
        """
        await self._stub()

    # -- owners and injectors --------------------------------------------------------------------

    async def accept(
        self, group: str, member: Member, sequencer: int, patience: float = 60.0, *, report_number: int = 0
    ) -> int:
        """Announce that ``sequencer`` is the sequencer of ``member`` (G4). The call is idempotent.

        Invariant: the caller does no work before this call returns. Otherwise a deposed owner, which does not know the
        records of its successor, could still move the low watermark past them.

        Args:
            group: The group.
            member: An interval, or the name of an injector process.
            sequencer: The sequencer to accept.
            patience: Seconds to try.
            report_number: For an injector: also confirm that this report is as durable as the acceptance.

        Returns:
            The last broadcast watermark of the member, in microseconds.

        Raises:
            AcceptRefusedError: A newer sequencer owns the member, or the catalog has no such member any more.
            ReportNotReceivedError: Report ``report_number`` has not arrived.
            RequestError: The result is unknown after ``patience`` seconds. Call again.
        """
        request = pb.AcceptSequencerRequest(
            group=group,
            keys=None if isinstance(member, str) else interval_to_wire(member),
            process=member if isinstance(member, str) else "",
            sequencer=sequencer,
            report_number=report_number,
        )

        async def call() -> int:
            stub, address = await self._stub()
            async with connected(address):
                return (await stub.AcceptSequencer(request, timeout=DEFAULT_DEADLINE_SECONDS)).watermark_us

        try:
            return await retrying(call, patience=patience, backoff=self._backoff, passing=PASSING)
        except RequestError as error:
            if error.reason in {SEQUENCER_REFUSED, MEMBER_UNKNOWN}:
                raise AcceptRefusedError(error.message) from error
            if error.reason == REPORT_NOT_RECEIVED:
                raise ReportNotReceivedError(str(member), report_number) from error
            raise

    def report(self, report: WatermarkReport) -> int:
        """Queue a report. It is sent until it has arrived. Its sequencer must be accepted. Returns its number."""
        return self.reports.report(report)

    # -- listeners -------------------------------------------------------------------------------

    def watch(self, groups: Iterable[str]) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
        """Broadcast values of ``groups``: first the current values, then every change.

        Each update has the newest value, never below an earlier one, and the new sequencers. After a reconnect it has
        all sequencers again. Failures that may pass do not end the watch. Other RequestErrors do.
        """
        return watch_watermarks(self._stub, groups, self._backoff)

    # -- operators -------------------------------------------------------------------------------

    async def explain(self, group: str, limit: int = 0) -> pb.ExplainWatermarkResponse:
        """What holds the low watermark of ``group`` (G8). RequestError (NOT_FOUND) if it is unknown."""
        stub, address = await self._stub()
        async with connected(address):
            request = pb.ExplainWatermarkRequest(group=group, limit=limit)
            return await stub.ExplainWatermark(request, timeout=DEFAULT_DEADLINE_SECONDS)

    async def percentile(self, group: str, basis_points: int) -> pb.GetPercentileWatermarkResponse:
        """The watermark of ``group`` alone, without the smallest of its pending timestamps (7.2).

        Args:
            group: The group.
            basis_points: The share of timestamps that count. 9900 leaves out one in a hundred.

        Raises:
            RequestError: The group is unknown (NOT_FOUND), or the authority does not answer.
        """
        stub, address = await self._stub()
        async with connected(address):
            request = pb.GetPercentileWatermarkRequest(group=group, percentile_bp=basis_points)
            return await stub.GetPercentileWatermark(request, timeout=DEFAULT_DEADLINE_SECONDS)

    async def expect_injectors(self, stream: str, processes: Iterable[str], patience: float = 60.0) -> None:
        """Make the low watermark of ``stream`` wait for exactly ``processes`` (5.2).

        If empty, for all that announce.
        """
        request = pb.ExpectInjectorsRequest(stream=stream, processes=sorted(set(processes)))

        async def call() -> None:
            stub, address = await self._stub()
            async with connected(address):
                await stub.ExpectInjectors(request, timeout=DEFAULT_DEADLINE_SECONDS)

        await retrying(call, patience=patience, backoff=self._backoff, passing=PASSING)

    async def remove(self, group: str, patience: float = 60.0) -> None:
        """Remove a cancelled group from the authority."""

        async def call() -> None:
            stub, address = await self._stub()
            async with connected(address):
                await stub.RemoveGroup(pb.RemoveGroupRequest(group=group), timeout=DEFAULT_DEADLINE_SECONDS)

        await retrying(call, patience=patience, backoff=self._backoff, passing=PASSING)

    # -- inside ----------------------------------------------------------------------------------

    async def _stub(self) -> tuple[WatermarkServiceAsyncStub, str]:
        """A stub for the shard's current server, and its address. RequestError (FAILED_PRECONDITION) once closed."""
        address = self._address if isinstance(self._address, str) else await self._address()
        # Other tasks may run here while a channel is closing. No channel to an earlier address may stay open.
        while gone := [one for one in self._channels if one != address]:
            await self._channels.pop(gone[0])[0].close(None)
        if self._closed:  # closed during an await above: a channel opened now would never be closed
            raise client_is_closed()
        if address not in self._channels:
            channel = open_channel(address)
            self._channels[address] = channel, WatermarkServiceStub(channel)
        return self._channels[address][1], address

    async def _accept_again(self, report: WatermarkReport) -> None:
        await self.accept(report.group, report.member, report.sequencer)


def client_is_closed() -> RequestError:
    """The error for a call to a client that is closed, or closes during the call. A retry does not help."""
    return RequestError(FailureCode.FAILED_PRECONDITION, "the client of the low watermark authority was closed")
