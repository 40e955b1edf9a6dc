"""The master's calls to workers and authority: progress of draining topologies, and changes at the authority."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import grpc

from millwheel.master.messages import IntervalProgress, Progress
from millwheel.model.catalog import Catalog, incarnations_of
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS, open_channel
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import authority_is_away
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import common_pb2, inspection_pb2, inspection_pb2_grpc, watermark_pb2, watermark_pb2_grpc

__all__ = ["MAX_ROWS", "Observer"]

MAX_ROWS: Final = 10_000
"""The maximum number of intervals or injector processes that one answer of the authority describes."""

_DEADLINE_SECONDS: Final = 2.0


class Observer:
    """Keeps channels to the workers and the authority. Observations without an answer in time are left out."""

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._idle: set[str] = set()
        """The addresses without a call since the last sweep."""

    def channel(self, address: str) -> grpc.aio.Channel:
        """Return the channel to a server. Use it at once, because a sweep closes unused channels."""
        self._idle.discard(address)
        if address not in self._channels:
            self._channels[address] = open_channel(address)
        return self._channels[address]

    async def read_progress(self, known: Catalog, topology: str) -> Progress:
        """Return the progress of the computations of ``topology``."""
        record = known.topologies.get(topology)
        if record is None:
            return Progress(topology)
        incarnations = [*incarnations_of(record), *(removed.incarnation for removed in record.removed)]
        intervals = [one for name in incarnations for one in _intervals(known, name) if one.HasField("owner")]
        watermarks, seen = await asyncio.gather(
            asyncio.gather(*(self._watermark(known, name) for name in incarnations)),
            asyncio.gather(*(self._interval(one) for one in intervals)),
        )
        return Progress(
            topology,
            {name: value for name, value in zip(incarnations, watermarks, strict=True) if value is not None},
            {one.journal: report for one, report in zip(intervals, seen, strict=True) if report is not None},
        )

    async def _interval(self, interval: catalog.IntervalRecord) -> IntervalProgress | None:
        stub = inspection_pb2_grpc.InspectionServiceStub(self.channel(interval.owner.address))
        try:
            answer: inspection_pb2.GetIntervalStatusResponse = await stub.GetIntervalStatus(
                inspection_pb2.GetIntervalStatusRequest(journal=interval.journal), timeout=_DEADLINE_SECONDS
            )
        except grpc.aio.AioRpcError:
            return None
        return IntervalProgress(answer.sequencer, answer.commit, answer.queued_records, answer.pending_productions)

    async def _watermark(self, known: Catalog, incarnation: IncarnationId) -> int | None:
        answer = await self.explain(known, incarnation)
        return None if answer is None else answer.watermark_us

    async def explain(self, known: Catalog, group: str, rows: int = 1) -> watermark_pb2.ExplainWatermarkResponse | None:
        """Return the authority's explanation of a group; None without an answer.

        ``rows``: the maximum number of intervals or processes that it describes, up to :data:`MAX_ROWS`.
        """
        endpoint = known.authority_of(group)
        if endpoint is None:
            return None
        stub = watermark_pb2_grpc.WatermarkServiceStub(self.channel(endpoint.address))
        try:
            return await stub.ExplainWatermark(
                watermark_pb2.ExplainWatermarkRequest(group=group, limit=rows), timeout=_DEADLINE_SECONDS
            )
        except grpc.aio.AioRpcError:
            return None

    async def explain_all(self, known: Catalog, groups: Iterable[str]) -> dict[str, watermark_pb2.GroupExplanation]:
        """Return the authority's short explanations, by group, in one call to each of its processes.

        Groups without an answer are left out.
        """
        by_address: dict[str, list[str]] = {}
        for group in groups:
            endpoint = known.authority_of(group)
            if endpoint is not None:
                by_address.setdefault(endpoint.address, []).append(group)
        answers = await asyncio.gather(*(self._explain_at(address, some) for address, some in by_address.items()))
        return {one.group: one for answer in answers for one in answer}

    async def _explain_at(self, address: str, groups: list[str]) -> list[watermark_pb2.GroupExplanation]:
        stub = watermark_pb2_grpc.WatermarkServiceStub(self.channel(address))
        request = watermark_pb2.ExplainWatermarksRequest(groups=groups)
        try:
            answer: watermark_pb2.ExplainWatermarksResponse = await stub.ExplainWatermarks(
                request, timeout=_DEADLINE_SECONDS
            )
        except grpc.aio.AioRpcError:
            return []
        return list(answer.groups)

    async def forget(self, known: Catalog, group: str, up_to: int) -> None:
        """Remove a group at the authority; RequestError if there is no answer.

        Unless ``up_to`` is 0, nothing is removed if the authority has accepted a larger sequencer. The removal is
        journaled, so it survives a takeover of the shard.
        """
        endpoint = _authority_of(known, group)
        stub = watermark_pb2_grpc.WatermarkServiceStub(self.channel(endpoint.address))
        async with calling(endpoint.address):
            await stub.RemoveGroup(
                watermark_pb2.RemoveGroupRequest(group=group, up_to_sequencer=up_to),
                timeout=_DEADLINE_SECONDS,
            )

    async def accept(self, authority: common_pb2.Endpoint, group: str, process: str, sequencer: int) -> int:
        """Make the authority accept an injector process. Return the process's watermark in the authority's journal.

        RequestError if a larger sequencer was accepted (SEQUENCER_REFUSED), or if there is no answer.
        """
        stub = watermark_pb2_grpc.WatermarkServiceStub(self.channel(authority.address))
        async with calling(authority.address):
            accepted: watermark_pb2.AcceptSequencerResponse = await stub.AcceptSequencer(
                watermark_pb2.AcceptSequencerRequest(group=group, process=process, sequencer=sequencer),
                timeout=DEFAULT_DEADLINE_SECONDS,
            )
        return accepted.watermark_us

    async def expect(self, known: Catalog, stream: str) -> None:
        """Make the authority wait for the injectors that ``stream`` declares; RequestError if there is no answer.

        Idempotent. The authority ignores a declaration from an earlier catalog.
        """
        endpoint = _authority_of(known, injector_group(stream))
        declared = known.stream(stream)
        stub = watermark_pb2_grpc.WatermarkServiceStub(self.channel(endpoint.address))
        async with calling(endpoint.address):
            await stub.ExpectInjectors(
                watermark_pb2.ExpectInjectorsRequest(
                    stream=stream,
                    processes=sorted(declared.expected_injectors) if declared else (),
                    as_of_revision=known.revision,
                ),
                timeout=DEFAULT_DEADLINE_SECONDS,
            )

    async def sweep(self) -> None:
        """Close the channels without a call since the last sweep, because their servers may be gone for good.

        The time between two sweeps must be longer than any call.
        """
        gone = [self._channels.pop(address) for address in self._idle]
        self._idle = set(self._channels)
        for channel in gone:
            await channel.close(None)

    async def close(self) -> None:
        """Close the channels."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            await channel.close(None)


def _authority_of(known: Catalog, group: str) -> common_pb2.Endpoint:
    """Return the server of the group's shard; RequestError (UNAVAILABLE) while there is none."""
    endpoint = known.authority_of(group)
    if endpoint is None:
        raise authority_is_away(repr(group))
    return endpoint


def _intervals(known: Catalog, incarnation: IncarnationId) -> list[catalog.IntervalRecord]:
    record = known.interval_map(incarnation)
    return list(record.intervals) if record is not None else []
