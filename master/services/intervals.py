"""IntervalService: lists interval owners, and moves, splits and merges intervals while they run (4.1, 7.1)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import grpc

from millwheel.master import reshape_plans
from millwheel.master.change_preview import preview_change
from millwheel.master.handover_hints import refuse_quarantined
from millwheel.master.messages import IntervalName, MergeIntervals, MoveInterval, ReshapeRequest, SplitInterval
from millwheel.master.replica import MasterReplica
from millwheel.master.services.pages import page_rows
from millwheel.master.split_point import halving
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.master.views import names_of
from millwheel.model.catalog import LIVE_STATES, Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.errors import answering, calling
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.page_tokens import foreign_page_token
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1 import interval_pb2_grpc
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub

__all__ = ["IntervalServicer"]

_OWNER_SECONDS: Final = 3.0
"""How long an owner may take to answer."""
_BRIEF: Final = ("sample", "hooks")
"""The fields of a load that a brief list leaves out."""

Context = grpc.aio.ServicerContext[Any, Any]


class IntervalServicer(interval_pb2_grpc.IntervalServiceServicer):
    """Answers from the catalog and from the workers' load reports. The core decides all changes."""

    def __init__(self, replica: MasterReplica) -> None:
        self._replica = replica

    async def ListIntervals(self, request: wire.ListIntervalsRequest, context: Context) -> wire.ListIntervalsResponse:
        """Return a page of intervals, ordered by topology, computation and keys. The streams' logs come last."""
        return await answering(context, lambda: self._list(request))

    async def _list(self, request: wire.ListIntervalsRequest) -> wire.ListIntervalsResponse:
        known = (await self._replica.term()).catalog
        size = page_rows(request.page_size)
        response = wire.ListIntervalsResponse()
        after = _from_token(request.page_token) if request.page_token else None
        for place in _incarnations(known, request):
            if after is not None and place.order < after[:3]:
                continue
            start = after[3] if after is not None and place.order == after[:3] else b""
            for interval in _from(known, place.incarnation, start):
                if len(response.intervals) == size:
                    response.next_page_token = _to_token(place, interval.keys.start)
                    return response
                self._describe(response.intervals.add(), place, interval, brief=request.brief)
        return response

    def _describe(
        self, row: wire.IntervalStatus, place: _Listed, interval: catalog.IntervalRecord, *, brief: bool = False
    ) -> None:
        row.topology, row.computation, row.stream = place.topology, place.computation, place.stream
        row.interval.CopyFrom(interval)
        report = self._replica.book.report_of(interval)
        if report is not None:
            row.load.CopyFrom(report.load)
            if (come := report.come) is not None:
                row.arriving_per_second = come
            if brief:
                _shorten(row.load)
        for one in self._replica.hot_keys:
            if one.journal == interval.journal:
                row.hot_keys.add(key=one.key, share=one.share)

    async def MoveInterval(self, request: wire.MoveIntervalRequest, context: Context) -> wire.MoveIntervalResponse:
        """Give an interval to another owner, under a fresh sequencer."""

        async def work() -> wire.MoveIntervalResponse:
            move = _move(request)
            return wire.MoveIntervalResponse(interval=(await self._replica.reshape(move)).intervals[0])

        return await answering(context, work)

    async def SplitInterval(self, request: wire.SplitIntervalRequest, context: Context) -> wire.SplitIntervalResponse:
        """Split an interval in two."""

        async def work() -> wire.SplitIntervalResponse:
            split = _split(request)
            known = (await self._replica.term()).catalog
            if not request.HasField("at") and reshape_plans.repeated(known, split) is None:
                at = halving(reshape_plans.find(known, split.interval), self._replica.book).at
                split = replace(split, at=at)
            return wire.SplitIntervalResponse(intervals=(await self._replica.reshape(split)).intervals)

        return await answering(context, work)

    async def MergeIntervals(
        self, request: wire.MergeIntervalsRequest, context: Context
    ) -> wire.MergeIntervalsResponse:
        """Merge two neighbouring intervals."""

        async def work() -> wire.MergeIntervalsResponse:
            merge = _merge(request)
            return wire.MergeIntervalsResponse(interval=(await self._replica.reshape(merge)).intervals[0])

        return await answering(context, work)

    async def GetInterval(self, request: wire.GetIntervalRequest, context: Context) -> wire.GetIntervalResponse:
        """Return an interval with its last load report, and with what its owner says now."""
        return await answering(context, lambda: self._get(request))

    async def _get(self, request: wire.GetIntervalRequest) -> wire.GetIntervalResponse:
        known = (await self._replica.term()).catalog
        place = reshape_plans.find(known, _name(request.interval))
        topology, computation = names_of(known).get(place.incarnation, ("", ""))
        log = known.log_of(place.incarnation)
        listed = _Listed(place.incarnation, topology, computation, log.stream if log is not None else "")
        response = wire.GetIntervalResponse()
        self._describe(response.interval, listed, place.interval)
        if not place.interval.HasField("owner"):
            response.owner_error = "no worker owns the interval"
            return response
        try:
            response.owner.CopyFrom(await self._ask_owner(place.interval))
        except RequestError as error:
            response.owner_error = error.message
        return response

    async def _ask_owner(self, interval: catalog.IntervalRecord) -> inspection.GetIntervalStatusResponse:
        address = interval.owner.address
        stub = InspectionServiceStub(self._replica.observer.channel(address))
        async with calling(address):
            return await stub.GetIntervalStatus(
                inspection.GetIntervalStatusRequest(journal=interval.journal), timeout=_OWNER_SECONDS
            )

    async def PlanIntervalChange(
        self, request: wire.PlanIntervalChangeRequest, context: Context
    ) -> wire.PlanIntervalChangeResponse:
        """Return what a change would do now."""
        return await answering(context, lambda: self._preview(request))

    async def _preview(self, request: wire.PlanIntervalChangeRequest) -> wire.PlanIntervalChangeResponse:
        term = await self._replica.term()
        wanted: ReshapeRequest
        match request.WhichOneof("change"):
            case "move":
                wanted, name = _move(request.move), request.move.interval
            case "split":
                wanted, name = _split(request.split), request.split.interval
            case "merge":
                wanted, name = _merge(request.merge), request.merge.interval
            case _:
                raise RequestError(
                    FailureCode.INVALID_ARGUMENT,
                    "field `change` is missing: it says what to plan",
                    "set `move`, `split` or `merge`",
                    reason="FIELD_MISSING",
                )
        book, wanted = self._replica.book, replace(wanted, request_id="")
        refuse_quarantined(term.catalog, wanted, book)
        halve = not request.split.HasField("at")
        return preview_change(term.catalog, book, wanted, name, term.core.loads, halve=halve)


# Requests.


def _move(request: wire.MoveIntervalRequest) -> MoveInterval:
    return MoveInterval(_name(request.interval), request.worker_id, request.request_id, request.expected_sequencer)


def _split(request: wire.SplitIntervalRequest) -> SplitInterval:
    if request.HasField("at") and not request.at:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            "an interval cannot be split at the empty key: no key is below it",
            "name another key, or none to split where the load is halved",
            reason="KEY_EMPTY",
        )
    name, expected = _name(request.interval), request.expected_sequencer
    return SplitInterval(name, request.at, request.worker_id, request.request_id, expected)


def _merge(request: wire.MergeIntervalsRequest) -> MergeIntervals:
    return MergeIntervals(_name(request.interval), request.worker_id, request.request_id, request.expected_sequencer)


def _name(name: wire.IntervalName) -> IntervalName:
    # The empty key names a computation's first interval, which begins there.
    key = name.key if name.HasField("key") else None
    return IntervalName(name.topology, name.computation, name.journal, key)


# Listing.


def _shorten(load: inspection.IntervalLoad) -> None:
    """Leave the long parts of a load out."""
    for name in _BRIEF:
        load.ClearField(name)
    if load.HasField("failures"):
        attempts, blocked = load.failures.attempts, load.failures.blocked_keys
        load.failures.Clear()
        load.failures.attempts, load.failures.blocked_keys = attempts, blocked


class _Listed:
    """An incarnation with its names. ``order``: its place in the list."""

    __slots__ = ("computation", "incarnation", "order", "stream", "topology")

    def __init__(self, incarnation: IncarnationId, topology: str = "", computation: str = "", stream: str = "") -> None:
        self.incarnation = incarnation
        self.topology = topology
        self.computation = computation
        self.stream = stream
        self.order = ("log" if stream else "computation", topology, computation or stream)


def _incarnations(known: Catalog, request: wire.ListIntervalsRequest) -> Iterator[_Listed]:
    """Yield the incarnations that the request selects, in the list's order."""
    if request.topology and request.topology not in known.topologies:
        refuse_unknown_topology(request.topology, known)
    if request.computation:
        one = IntervalName(request.topology, request.computation)
        yield _Listed(reshape_plans.incarnation_of(known, one), request.topology, request.computation)
        return
    for name, record in sorted(known.topologies.items()):
        if record.state in LIVE_STATES and request.topology in ("", name):
            for computation, incarnation in sorted(record.incarnations.items()):
                yield _Listed(incarnation, name, computation)
    if not request.topology:
        for stream, log in sorted(known.logs.items()):
            yield _Listed(log.incarnation, stream=stream)


def _from(known: Catalog, incarnation: IncarnationId, start: bytes) -> Iterator[catalog.IntervalRecord]:
    """Yield the intervals of an incarnation that begin at ``start`` or after it."""
    interval_map = known.maps.get(incarnation)
    return iter(()) if interval_map is None else interval_map.beginning_from(start)


def _to_token(place: _Listed, start: bytes) -> str:
    parts = [*(part.encode() for part in place.order), start]
    return ".".join(base64.urlsafe_b64encode(part).decode() for part in parts)


def _from_token(token: str) -> tuple[str, str, str, bytes]:
    try:
        kind, topology, name, start = (base64.urlsafe_b64decode(part) for part in token.split("."))
        return kind.decode(), topology.decode(), name.decode(), start
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise foreign_page_token() from error
