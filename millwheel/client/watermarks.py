"""The client of one authority shard, for workers and injectors (5.2, 7.2).

Reports are idempotent: what counts is the newest of each interval, so that alone is kept, sent on
change, and sent again after a reconnect. A watch survives reconnects; values never go back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import grpc

from millwheel.client.report_stream import PendingOf, ReportStream, connected, nothing_told
from millwheel.core.time import MIN_TIMESTAMP
from millwheel.rpc.channel import DEFAULT_DEADLINE, PASSING, RETRYABLE, Backoff, open_channel, retrying
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceStub
from millwheel.rpc.watermarks import (
    REPORT_NOT_HEARD,
    SEQUENCER_REFUSED,
    AcceptRefusedError,
    BroadcastUpdate,
    Member,
    ReportNotHeardError,
    WatermarkReport,
    interval_to_wire,
    sequencers_from_wire,
)

if TYPE_CHECKING:
    from millwheel.rpc.v1.watermark_pb2_grpc import WatermarkServiceAsyncStub

__all__ = ["Address", "WatermarkClient", "client_is_closed"]

Address: TypeAlias = str | Callable[[], Awaitable[str]]
"""``host:port`` of the shard, or how to find out where it is now, asked before every attempt to connect."""


class WatermarkClient:
    """Talks to one shard. An async context manager; reports begin to flow inside it.

    ``on_refused``: called with a report whose owner is the owner no more: drop the interval. ``pending_of``: what
    members of a computation have at work, told to the authority when it asks.
    ``coalesce``: how far apart messages are at least, seconds: under load a watermark changes with every record, and
    a message for each would cost both sides as much as the record does. ``refresh``: seconds after which every value is
    sent again, so that the authority can tell a still interval from a silent one.
    """

    def __init__(
        self,
        address: Address,
        *,
        on_refused: Callable[[WatermarkReport], None],
        pending_of: PendingOf = nothing_told,
        coalesce: float = 0.02,
        refresh: float = 10.0,
        backoff: Backoff | None = None,
    ) -> None:
        self._address = address
        self._backoff = backoff or Backoff()
        self._channels: dict[str, tuple[grpc.aio.Channel, WatermarkServiceAsyncStub]] = {}
        self._closed = False
        self._stream = ReportStream(
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
        """Have reports flow, until :meth:`close`."""
        self._stream.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reporting and close the connection."""
        self._closed = True
        await self._stream.close()
        for channel, _ in self._channels.values():
            await channel.close(None)
        self._channels.clear()

    async def follow(self) -> None:
        """See whether the shard has moved: then its old connection is closed, and all that used it goes on at the new.

        Whoever had it may be paused, or cut off, and never say that it is over. RequestError: not known where it is.
        """
        await self._stub()

    # -- owners and injectors --------------------------------------------------------------------

    async def accept(
        self, computation: str, member: Member, sequencer: int, patience: float = 60.0, *, report_number: int = 0
    ) -> int:
        """Have ``sequencer`` accepted for ``member`` (G4); what was last broadcast for it.

        Do no work before it returns. AcceptRefusedError: somebody else owns it. ReportNotHeardError: an injector's
        report ``report_number`` has not come; if it has, it is as durable as the acceptance. Any other RequestError:
        not known within ``patience`` seconds; ask again, it is idempotent.
        """
        request = pb.AcceptSequencerRequest(
            computation=computation,
            keys=None if isinstance(member, str) else interval_to_wire(member),
            process=member if isinstance(member, str) else "",
            sequencer=sequencer,
            report_number=report_number,
        )

        async def call() -> int:
            stub, address = await self._stub()
            async with connected(address):
                return (await stub.AcceptSequencer(request, timeout=DEFAULT_DEADLINE)).watermark_us

        try:
            return await retrying(call, patience=patience, backoff=self._backoff, passing=PASSING)
        except RequestError as error:
            if error.reason == SEQUENCER_REFUSED:
                raise AcceptRefusedError(error.message) from error
            if error.reason == REPORT_NOT_HEARD:
                raise ReportNotHeardError(str(member), report_number) from error
            raise

    def report(self, report: WatermarkReport) -> int:
        """Report, soon and until it has arrived; the report's number. Its sequencer was accepted before."""
        return self._stream.report(report)

    def forget(self, computation: str, member: Member) -> None:
        """Report nothing more of a member: it was let go of."""
        self._stream.forget(computation, member)

    # -- listeners -------------------------------------------------------------------------------

    async def watch(self, computations: Iterable[str]) -> AsyncGenerator[dict[str, BroadcastUpdate], None]:
        """What is broadcast for ``computations``: first the current values, then every change.

        Each update has the newest value, never below an earlier one, and the sequencers that are new (after a
        reconnect all of them again). Goes on through failures that may pass; other RequestErrors end it.
        """
        known: dict[str, int] = {}
        request = pb.WatchWatermarksRequest(computations=sorted(set(computations)))
        failures = 0
        while True:
            call = None
            try:
                stub, address = await self._stub()
                call = stub.WatchWatermarks(request)
                while (response := await _read(call, address)) is not None:
                    failures = 0
                    news = _news(response, known)
                    if news:
                        yield news
            except RequestError as error:
                if error.code not in RETRYABLE:
                    raise
            finally:
                if call is not None:
                    call.cancel()
            failures += 1
            await asyncio.sleep(self._backoff.delay(failures, random.random()))

    # -- operators -------------------------------------------------------------------------------

    async def explain(self, computation: str, limit: int = 0) -> pb.ExplainWatermarkResponse:
        """What holds the watermark of ``computation`` back (G8); RequestError NOT_FOUND if nothing is known of it."""
        stub, address = await self._stub()
        async with connected(address):
            request = pb.ExplainWatermarkRequest(computation=computation, limit=limit)
            return await stub.ExplainWatermark(request, timeout=DEFAULT_DEADLINE)

    async def percentile(self, computation: str, basis_points: int) -> pb.GetPercentileWatermarkResponse:
        """The watermark of ``computation`` alone without the smallest timestamps at work in it (7.2).

        ``basis_points``: 9900 leaves out one in a hundred. RequestError NOT_FOUND if nothing is known of it.
        """
        stub, address = await self._stub()
        async with connected(address):
            request = pb.GetPercentileWatermarkRequest(computation=computation, percentile_bp=basis_points)
            return await stub.GetPercentileWatermark(request, timeout=DEFAULT_DEADLINE)

    async def expect_injectors(self, stream: str, processes: Iterable[str], patience: float = 60.0) -> None:
        """Have ``stream``'s watermark wait for exactly ``processes`` (5.2); for all announced if none."""
        request = pb.ExpectInjectorsRequest(stream=stream, processes=sorted(set(processes)))

        async def call() -> None:
            stub, address = await self._stub()
            async with connected(address):
                await stub.ExpectInjectors(request, timeout=DEFAULT_DEADLINE)

        await retrying(call, patience=patience, backoff=self._backoff, passing=PASSING)

    async def remove(self, computation: str, patience: float = 60.0) -> None:
        """Have a cancelled computation forgotten."""

        async def call() -> None:
            stub, address = await self._stub()
            async with connected(address):
                await stub.RemoveComputation(
                    pb.RemoveComputationRequest(computation=computation), timeout=DEFAULT_DEADLINE
                )

        await retrying(call, patience=patience, backoff=self._backoff, passing=PASSING)

    # -- inside ----------------------------------------------------------------------------------

    async def _stub(self) -> tuple[WatermarkServiceAsyncStub, str]:
        """The service where the shard is now, and its address; RequestError (FAILED_PRECONDITION) after the end."""
        address = self._address if isinstance(self._address, str) else await self._address()
        # Others may come by here while a channel is being closed: none may stay open to where the shard is no more.
        while gone := [one for one in self._channels if one != address]:
            await self._channels.pop(gone[0])[0].close(None)
        if self._closed:  # meanwhile, say: nobody would close what is opened now
            raise client_is_closed()
        if address not in self._channels:
            channel = open_channel(address)
            self._channels[address] = channel, WatermarkServiceStub(channel)
        return self._channels[address][1], address

    async def _accept_again(self, report: WatermarkReport) -> None:
        await self.accept(report.computation, report.member, report.sequencer)


def client_is_closed() -> RequestError:
    """What is raised to those who ask a client that is closed, or was closed under them. Not to be tried again."""
    return RequestError(FailureCode.FAILED_PRECONDITION, "the client of the low watermark authority was closed")


async def _read(
    call: grpc.aio.UnaryStreamCall[pb.WatchWatermarksRequest, pb.WatchWatermarksResponse], address: str
) -> pb.WatchWatermarksResponse | None:
    """The next message, or None at the end of the call."""
    async with connected(address):
        response = await call.read()
    return response if isinstance(response, pb.WatchWatermarksResponse) else None


def _news(response: pb.WatchWatermarksResponse, known: dict[str, int]) -> dict[str, BroadcastUpdate]:
    """What of ``response`` is new to one who knows ``known``, which is brought up to date."""
    news = {}
    for message in response.watermarks:
        name, before = message.computation, known.get(message.computation)
        watermark = max(message.watermark_us, MIN_TIMESTAMP if before is None else before)
        if watermark != before or message.sequencers:
            known[name] = watermark
            news[name] = BroadcastUpdate(watermark, sequencers_from_wire(message.sequencers))
    return news
