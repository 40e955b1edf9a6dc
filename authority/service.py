"""WatermarkService: the calls of owners, masters and operators to the authority's shards (7.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from millwheel.authority.broadcasts import Context
from millwheel.authority.driver import now_us
from millwheel.authority.members import Explanation, MemberView
from millwheel.authority.percentiles import WHOLE
from millwheel.authority.reporting import ReportingServicer, Shards
from millwheel.model.incarnation import injector_group
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import watermark_pb2 as pb
from millwheel.rpc.watermarks import Member, check_names, interval_to_wire, invalid, member_from_wire

__all__ = ["MemberCheck", "Shards", "WatermarkServicer"]

_DEFAULT_ROWS: Final = 100
_MAX_ROWS: Final = 10_000
_MAX_GROUPS: Final = 10_000


MemberCheck = Callable[[str, Member, int], Awaitable[None]]
"""Raises MemberUnknownError unless the catalog has this member of a group, with this sequencer or a later one."""


async def _no_check(group: str, member: Member, sequencer: int) -> None:
    """For a shard without a catalog."""


class WatermarkServicer(ReportingServicer):
    """The gRPC service of the shards that a process serves.

    A shard that has stopped, or that another process serves, answers UNAVAILABLE: look up where it is now.
    """

    def __init__(self, shards: Shards, check_member: MemberCheck = _no_check) -> None:
        super().__init__(shards)
        self._check_member = check_member

    async def AcceptSequencer(self, request: pb.AcceptSequencerRequest, context: Context) -> pb.AcceptSequencerResponse:
        """Accept a sequencer. It is journaled before the answer (G4).

        FAILED_PRECONDITION: SEQUENCER_REFUSED if a larger sequencer is the owner. REPORT_NOT_RECEIVED if a process
        requests confirmation of a report that was not received. NOT_FOUND: MEMBER_UNKNOWN if the catalog has no such
        incarnation or process.
        """

        async def work() -> pb.AcceptSequencerResponse:
            check_names(group=request.group, process=request.process)
            member = member_from_wire(request)
            if request.report_number and not isinstance(member, str):
                raise invalid("report_number", "is set: only processes of injectors ask which reports were received")
            shard = self._shards.shard_for(request.group)
            if not shard.knows(request.group, member, request.sequencer):
                await self._check_member(request.group, member, request.sequencer)
            watermark = await shard.accept(request.group, member, request.sequencer, request.report_number)
            return pb.AcceptSequencerResponse(watermark_us=watermark)

        return await answering(context, work)

    async def ExplainWatermark(
        self, request: pb.ExplainWatermarkRequest, context: Context
    ) -> pb.ExplainWatermarkResponse:
        """Explain a group's watermark (G8). NOT_FOUND for a group that this shard does not know."""

        async def work() -> pb.ExplainWatermarkResponse:
            limit = request.limit or _DEFAULT_ROWS
            if limit > _MAX_ROWS:
                raise invalid("limit", f"is {limit}: {_MAX_ROWS} rows are the most that one answer holds")
            answer = self._shards.shard_for(request.group).explain(request.group, limit)
            if answer is None:
                raise _unknown(request.group)
            return _explained(answer)

        return await answering(context, work)

    async def ExplainWatermarks(
        self, request: pb.ExplainWatermarksRequest, context: Context
    ) -> pb.ExplainWatermarksResponse:
        """Explain all groups of the request that are known here, with the first report that holds each."""

        async def work() -> pb.ExplainWatermarksResponse:
            if len(request.groups) > _MAX_GROUPS:
                raise invalid("groups", f"has {len(request.groups)} names, and {_MAX_GROUPS} at most are allowed")
            response = pb.ExplainWatermarksResponse()
            for group in request.groups:
                with suppress(RequestError):  # another process serves the shard
                    shard = self._shards.shard_for(group)
                    answer = shard.explain(group, 1)
                    if answer is not None:
                        response.groups.add(
                            group=group,
                            watermark_us=answer.watermark,
                            holding=_row(group, answer.holding[0]) if answer.holding else None,
                            served_us=now_us() - shard.opened,
                        )
            return response

        return await answering(context, work)

    async def GetPercentileWatermark(
        self, request: pb.GetPercentileWatermarkRequest, context: Context
    ) -> pb.GetPercentileWatermarkResponse:
        """Decide a percentile watermark. It is journaled before the answer.

        NOT_FOUND for a group that this shard does not know.
        """

        async def work() -> pb.GetPercentileWatermarkResponse:
            if not 0 < request.percentile_bp <= WHOLE:
                raise invalid("percentile_bp", f"is {request.percentile_bp}: hundredths of a percent, 1 to {WHOLE}")
            check_names(group=request.group)
            shard = self._shards.shard_for(request.group)
            answer = await shard.percentile(request.group, request.percentile_bp)
            if answer is None:
                raise _unknown(request.group)
            return pb.GetPercentileWatermarkResponse(
                watermark_us=answer.watermark, member_count=answer.members, silent_count=answer.silent
            )

        return await answering(context, work)

    async def ExpectInjectors(self, request: pb.ExpectInjectorsRequest, context: Context) -> pb.ExpectInjectorsResponse:
        """Replace a stream's expected set. Idempotent. It is journaled before the answer (5.2)."""

        async def work() -> pb.ExpectInjectorsResponse:
            if not request.stream:
                raise invalid("stream", "is empty: name the stream whose injector is meant")
            check_names(stream=request.stream)
            for number, process in enumerate(request.processes):
                if not process:
                    raise invalid(f"processes[{number}]", "is empty: name the process, or leave it out")
                check_names(**{f"processes[{number}]": process})
            shard = self._shards.shard_for(injector_group(request.stream))
            await shard.expect_injectors(request.stream, request.processes, request.as_of_revision)
            return pb.ExpectInjectorsResponse()

        return await answering(context, work)

    async def RemoveGroup(self, request: pb.RemoveGroupRequest, context: Context) -> pb.RemoveGroupResponse:
        """Remove a group. Idempotent. It is journaled before the answer."""

        async def work() -> pb.RemoveGroupResponse:
            if not request.group:
                raise invalid("group", 'is empty: name an incarnation, or "injector/{stream}"')
            check_names(group=request.group)
            await self._shards.shard_for(request.group).remove(request.group, request.up_to_sequencer)
            return pb.RemoveGroupResponse()

        return await answering(context, work)


def _explained(answer: Explanation) -> pb.ExplainWatermarkResponse:
    return pb.ExplainWatermarkResponse(
        watermark_us=answer.watermark,
        holding=[_row(answer.group, row) for row in answer.holding],
        intervals=[_row(answer.group, row) for row in answer.rows],
        interval_count=answer.row_count,
        holding_count=answer.holding_count,
    )


def _row(group: str, row: MemberView) -> pb.IntervalWatermark:
    return pb.IntervalWatermark(
        group=group,
        keys=None if isinstance(row.member, str) else interval_to_wire(row.member),
        process=row.member if isinstance(row.member, str) else "",
        sequencer=row.sequencer,
        watermark_us=row.watermark,
        hold=pb.WatermarkHold(kind=row.hold, subject=row.subject),
        input_watermark_us=row.input_watermark,
        idle=row.idle,
        silence_us=row.silence,
    )


def _unknown(group: str) -> RequestError:
    return RequestError(
        FailureCode.NOT_FOUND,
        f"nothing was ever accepted for group {group!r} at this authority",
        "see whether its name is right and its intervals have owners",
        reason="GROUP_UNKNOWN",
    )
