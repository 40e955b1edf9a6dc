"""WatermarkService: the authority's shards over gRPC (7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import grpc

from millwheel.authority.percentiles import WHOLE
from millwheel.authority.shares import Explanation, Refusal, ShareView
from millwheel.authority.shell import AuthorityShell, AuthorityStoppedError
from millwheel.errors import Problem
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.errors import abort, answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.merging import merged
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.v1 import watermark_pb2_grpc
from millwheel.rpc.watermarks import (
    BroadcastUpdate,
    WatermarkReport,
    injector_computation,
    interval_to_wire,
    member_from_wire,
    report_from_wire,
    report_to_wire,
    sequencers_to_wire,
)

__all__ = ["MAX_NAME_BYTES", "Shards", "WatermarkServicer"]

MAX_NAME_BYTES: Final = 1024
"""The maximum length of a computation, stream or process name, in bytes."""

_MAX_SEQUENCERS_PER_MESSAGE: Final = 5_000
_DEFAULT_ROWS: Final = 100
_MAX_ROWS: Final = 10_000

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer")


class Shards(Protocol):
    """The shards that a process serves."""

    def of(self, computation: str) -> AuthorityShell:
        """Return the shard that keeps ``computation``; RequestError (UNAVAILABLE) if it is not served here."""


class WatermarkServicer(watermark_pb2_grpc.WatermarkServiceServicer):
    """The gRPC service of the shards that a process serves.

    A shard that has stopped, or that another process serves, answers UNAVAILABLE: look up where it is now.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def AcceptSequencer(self, request: pb.AcceptSequencerRequest, context: Context) -> pb.AcceptSequencerResponse:
        """Accept a sequencer. It is journaled before the answer (G4).

        FAILED_PRECONDITION: SEQUENCER_REFUSED if a larger sequencer is the owner. REPORT_NOT_HEARD if a process
        requests confirmation of a report that was not received.
        """

        async def work() -> pb.AcceptSequencerResponse:
            _check_names(computation=request.computation, process=request.process)
            member = member_from_wire(request)
            if request.report_number and not isinstance(member, str):
                raise _invalid("report_number", "is set: only processes of injectors ask which reports were received")
            watermark = await self._shards.of(request.computation).accept(
                request.computation, member, request.sequencer, request.report_number
            )
            return pb.AcceptSequencerResponse(watermark_us=watermark)

        return await answering(context, work)

    async def Report(
        self, request_iterator: AsyncIterator[pb.ReportRequest], context: Context
    ) -> AsyncIterator[pb.ReportResponse]:
        """Receive reports, and return the refused ones.

        A malformed report ends the call; the reports before it count.
        """
        events = _ShardEvents()

        async def coming() -> AsyncGenerator[pb.ReportRequest, None]:
            try:
                async for request in request_iterator:
                    yield request
            finally:
                events.end()

        try:
            sources: list[AsyncGenerator[pb.ReportRequest | list[str], None]] = [coming(), events.news()]
            async with aclosing(merged(sources)) as news:
                async for one in news:
                    if isinstance(one, list):
                        yield pb.ReportResponse(wanted=one)
                    elif (response := await self._take(one, events)) is not None:
                        yield response
        except RequestError as error:
            await abort(context, error)
        finally:
            events.leave()

    async def WatchWatermarks(
        self, request: pb.WatchWatermarksRequest, context: Context
    ) -> AsyncIterator[pb.WatchWatermarksResponse]:
        """Send all current values at once, then changes. A slow listener gets only the newest of each computation."""
        try:
            if not request.computations:
                raise _invalid("computations", "is empty: name the computations to watch")
            for number, computation in enumerate(request.computations):
                _check_names(**{f"computations[{number}]": computation})
                if not computation:
                    raise _invalid(f"computations[{number}]", 'is empty: name an incarnation, or "injector/{stream}"')
            shells: dict[AuthorityShell, list[str]] = {}
            for computation in request.computations:
                shells.setdefault(self._shards.of(computation), []).append(computation)
            watches = [shell.watch(computations) for shell, computations in shells.items()]
            async with aclosing(merged(watches)) as updates:
                async for news in updates:
                    for response in _responses(news):
                        yield response
        except RequestError as error:
            await abort(context, error)

    async def ExplainWatermark(
        self, request: pb.ExplainWatermarkRequest, context: Context
    ) -> pb.ExplainWatermarkResponse:
        """Explain a computation's watermark (G8). NOT_FOUND for a computation that this shard does not know."""

        async def work() -> pb.ExplainWatermarkResponse:
            limit = request.limit or _DEFAULT_ROWS
            if limit > _MAX_ROWS:
                raise _invalid("limit", f"is {limit}: {_MAX_ROWS} rows are the most that one answer holds")
            answer = self._shards.of(request.computation).explain(request.computation, limit)
            if answer is None:
                raise _unknown(request.computation)
            return _explained(answer)

        return await answering(context, work)

    async def GetPercentileWatermark(
        self, request: pb.GetPercentileWatermarkRequest, context: Context
    ) -> pb.GetPercentileWatermarkResponse:
        """Decide a percentile watermark. It is journaled before the answer.

        NOT_FOUND for a computation that this shard does not know.
        """

        async def work() -> pb.GetPercentileWatermarkResponse:
            if not 0 < request.percentile_bp <= WHOLE:
                raise _invalid("percentile_bp", f"is {request.percentile_bp}: hundredths of a percent, 1 to {WHOLE}")
            _check_names(computation=request.computation)
            shell = self._shards.of(request.computation)
            answer = await shell.percentile(request.computation, request.percentile_bp)
            if answer is None:
                raise _unknown(request.computation)
            return pb.GetPercentileWatermarkResponse(
                watermark_us=answer.watermark, member_count=answer.members, silent_count=answer.silent
            )

        return await answering(context, work)

    async def ExpectInjectors(self, request: pb.ExpectInjectorsRequest, context: Context) -> pb.ExpectInjectorsResponse:
        """Replace a stream's expected set. Idempotent. It is journaled before the answer (5.2)."""

        async def work() -> pb.ExpectInjectorsResponse:
            if not request.stream:
                raise _invalid("stream", "is empty: name the stream whose injector is meant")
            _check_names(stream=request.stream)
            for number, process in enumerate(request.processes):
                if not process:
                    raise _invalid(f"processes[{number}]", "is empty: name the process, or leave it out")
                _check_names(**{f"processes[{number}]": process})
            shell = self._shards.of(injector_computation(request.stream))
            await shell.expect_injectors(request.stream, request.processes, request.as_of_revision)
            return pb.ExpectInjectorsResponse()

        return await answering(context, work)

    async def RemoveComputation(
        self, request: pb.RemoveComputationRequest, context: Context
    ) -> pb.RemoveComputationResponse:
        """Remove a computation. Idempotent. It is journaled before the answer."""

        async def work() -> pb.RemoveComputationResponse:
            if not request.computation:
                raise _invalid("computation", 'is empty: name an incarnation, or "injector/{stream}"')
            _check_names(computation=request.computation)
            await self._shards.of(request.computation).remove(request.computation, request.up_to_sequencer)
            return pb.RemoveComputationResponse()

        return await answering(context, work)

    async def _take(self, request: pb.ReportRequest, events: _ShardEvents) -> pb.ReportResponse | None:
        """Check a whole batch, then apply it and follow its shards. Return the refused reports, if any.

        A malformed batch changes nothing.
        """
        batches: dict[AuthorityShell, list[WatermarkReport]] = {}
        for number, message in enumerate(request.intervals):
            where = f"intervals[{number}]."
            _check_names(**{f"{where}computation": message.computation, f"{where}process": message.process})
            report = report_from_wire(message, where)
            batches.setdefault(self._shards.of(report.computation), []).append(report)
        refused: list[Refusal] = []
        for shell, reports in batches.items():
            events.follow(shell)
            refused += await shell.report(reports)
        if not refused:
            return None
        return pb.ReportResponse(
            refused=_wire(refusal.report for refusal in refused if refusal.superseded),
            unaccepted=_wire(refusal.report for refusal in refused if not refusal.superseded),
        )


class _ShardEvents:
    """What a Report call receives from its shards: pending-work requests, and the news that a shard has stopped."""

    def __init__(self) -> None:
        self._wanted: dict[str, None] = {}
        self._failure: AuthorityStoppedError | None = None
        self._ended = False
        self._news = asyncio.Event()
        self._followed: dict[AuthorityShell, asyncio.Task[None]] = {}

    def follow(self, shell: AuthorityShell) -> None:
        """Receive news of ``shell`` from now on."""
        if shell not in self._followed:
            shell.wants.listen(self._want)
            self._followed[shell] = asyncio.create_task(self._hear_end(shell))

    async def news(self) -> AsyncGenerator[list[str], None]:
        """Yield requested computations until :meth:`end`.

        Raises AuthorityStoppedError when a shard stops, so that every reporter looks for its successor.
        """
        while not self._ended:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            if self._wanted:
                wanted, self._wanted = sorted(self._wanted), {}
                yield wanted

    def end(self) -> None:
        """End :meth:`news`, because the reporter has closed its side of the call."""
        self._ended = True
        self._news.set()

    def leave(self) -> None:
        """Stop receiving news of any shard."""
        for shell, task in self._followed.items():
            shell.wants.leave(self._want)
            task.cancel()

    def _want(self, computation: str) -> None:
        self._wanted[computation] = None
        self._news.set()

    async def _hear_end(self, shell: AuthorityShell) -> None:
        why = await shell.wait_stopped()
        self._failure = self._failure or AuthorityStoppedError(shell.journal, why)
        self._news.set()


def _wire(reports: Iterable[WatermarkReport]) -> list[pb.IntervalWatermark]:
    return [report_to_wire(report) for report in reports]


def _responses(news: dict[str, BroadcastUpdate]) -> Iterator[pb.WatchWatermarksResponse]:
    """Split the updates into messages of bounded size.

    A computation's value comes with the last of its sequencers, or after them.
    """
    response = pb.WatchWatermarksResponse()
    room = _MAX_SEQUENCERS_PER_MESSAGE
    for computation, update in news.items():
        sequencers = sequencers_to_wire(update.sequencers)
        while len(sequencers) > room:
            response.watermarks.add(computation=computation, watermark_us=MIN_TIMESTAMP, sequencers=sequencers[:room])
            yield response
            sequencers, response, room = sequencers[room:], pb.WatchWatermarksResponse(), _MAX_SEQUENCERS_PER_MESSAGE
        response.watermarks.add(computation=computation, watermark_us=update.watermark, sequencers=sequencers)
        room -= len(sequencers)
    yield response


def _explained(answer: Explanation) -> pb.ExplainWatermarkResponse:
    return pb.ExplainWatermarkResponse(
        watermark_us=answer.watermark,
        holding=[_row(answer.computation, row) for row in answer.holding],
        intervals=[_row(answer.computation, row) for row in answer.rows],
        interval_count=answer.row_count,
        holding_count=answer.holding_count,
    )


def _row(computation: str, row: ShareView) -> pb.IntervalWatermark:
    return pb.IntervalWatermark(
        computation=computation,
        keys=None if isinstance(row.member, str) else interval_to_wire(row.member),
        process=row.member if isinstance(row.member, str) else "",
        sequencer=row.sequencer,
        watermark_us=row.watermark,
        hold=pb.WatermarkHold(kind=row.hold, subject=row.subject),
        input_watermark_us=row.input_watermark,
        idle=row.idle,
        silence_us=row.silence,
    )


def _check_names(**names: str) -> None:
    for where, name in names.items():
        if len(name.encode()) > MAX_NAME_BYTES:
            raise _invalid(where, f"has {len(name.encode())} bytes: {MAX_NAME_BYTES} are the most")


def _unknown(computation: str) -> RequestError:
    return RequestError(
        FailureCode.NOT_FOUND,
        f"nothing was ever accepted for computation {computation!r} at this authority",
        "see whether its name is right and its intervals have owners",
        reason="COMPUTATION_UNKNOWN",
    )


def _invalid(where: str, why: str) -> RequestError:
    return RequestError(
        FailureCode.INVALID_ARGUMENT, f"{where} {why}", reason="INVALID_FIELD", problems=[Problem(where, why)]
    )
