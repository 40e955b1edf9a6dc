"""IntervalService: lists interval owners, and moves, splits and merges intervals while they run (4.1, 7.1)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any, Final

import grpc

from millwheel.master import reshaping
from millwheel.master.load_book import LoadBook, divide
from millwheel.master.messages import IntervalName, MergeIntervals, MoveInterval, SplitInterval
from millwheel.master.plans import refuse_unknown_topology
from millwheel.master.replica import MasterReplica
from millwheel.model.catalog import LIVE_STATES, Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1 import interval_pb2_grpc

__all__ = ["IntervalServicer"]

_DEFAULT_PAGE_ROWS: Final = 100
_MAX_PAGE_ROWS: Final = 1_000
_MIN_SIDE_SHARE: Final = 0.1
"""A split that leaves one side with a smaller share of the load is not worth it."""

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
        size = min(request.page_size if request.page_size > 0 else _DEFAULT_PAGE_ROWS, _MAX_PAGE_ROWS)
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
                response.intervals.append(self._status(place, interval))
        return response

    def _status(self, place: _Listed, interval: catalog.IntervalRecord) -> wire.IntervalStatus:
        hot = [one for one in self._replica.hot_keys if one.journal == interval.journal]
        return wire.IntervalStatus(
            topology=place.topology,
            computation=place.computation,
            stream=place.stream,
            interval=interval,
            load=self._replica.book.load_of(interval),
            hot_keys=[inspection.KeyLoad(key=one.key, share=one.share) for one in hot],
        )

    async def MoveInterval(self, request: wire.MoveIntervalRequest, context: Context) -> wire.MoveIntervalResponse:
        """Give an interval to another owner, under a fresh sequencer."""

        async def work() -> wire.MoveIntervalResponse:
            move = MoveInterval(_name(request.interval), request.worker_id, request.request_id)
            return wire.MoveIntervalResponse(interval=(await self._replica.reshape(move)).intervals[0])

        return await answering(context, work)

    async def SplitInterval(self, request: wire.SplitIntervalRequest, context: Context) -> wire.SplitIntervalResponse:
        """Split an interval in two."""

        async def work() -> wire.SplitIntervalResponse:
            if request.HasField("at") and not request.at:
                raise RequestError(
                    FailureCode.INVALID_ARGUMENT,
                    "an interval cannot be split at the empty key: no key is below it",
                    "name another key, or none to split where the load is halved",
                    reason="KEY_EMPTY",
                )
            split = SplitInterval(_name(request.interval), request.at, request.worker_id, request.request_id)
            known = (await self._replica.term()).catalog
            if not request.HasField("at") and reshaping.repeated(known, split) is None:
                at = _halving(reshaping.find(known, split.interval), self._replica.book)
                split = SplitInterval(split.interval, at, split.worker, split.request_id)
            return wire.SplitIntervalResponse(intervals=(await self._replica.reshape(split)).intervals)

        return await answering(context, work)

    async def MergeIntervals(
        self, request: wire.MergeIntervalsRequest, context: Context
    ) -> wire.MergeIntervalsResponse:
        """Merge two neighbouring intervals."""

        async def work() -> wire.MergeIntervalsResponse:
            merge = MergeIntervals(_name(request.interval), request.worker_id, request.request_id)
            return wire.MergeIntervalsResponse(interval=(await self._replica.reshape(merge)).intervals[0])

        return await answering(context, work)


# Requests.


def _name(name: wire.IntervalName) -> IntervalName:
    # The empty key names a computation's first interval, which begins there.
    key = name.key if name.HasField("key") else None
    return IntervalName(name.topology, name.computation, name.journal, key)


def _halving(place: reshaping.IntervalPlace, book: LoadBook) -> bytes:
    """Return the key that halves an interval's load; FAILED_PRECONDITION if no report or no key allows that."""
    if place.code is None:
        # A stream's log is refused later, with any key.
        return b"\0"
    load = book.load_of(place.interval)
    if load is None or not load.sample:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"where to split {reshaping.shown(place)} is not known: its owner has not reported its keys' load yet",
            "give a key to split at (`--at KEY`), or try again once records come in",
            reason="NO_SAMPLE",
        )
    division = divide(place.keys, load.sample)
    if division is not None and division.smaller >= _MIN_SIDE_SHARE:
        return division.at
    hottest = max(load.sample, key=lambda one: one.share)
    raise RequestError(
        FailureCode.FAILED_PRECONDITION,
        f"no key divides the load of {reshaping.shown(place)}: key {hottest.key.decode('utf-8', 'backslashreplace')!r} "
        f"alone has {hottest.share:.0%} of it",
        "a key is never split: spread it over several in the program (`spread=` of `.window(...).aggregate` does, for "
        "records that differ), "
        "or give a key to split at (`--at KEY`)",
        reason="HOT_KEY",
    )


# Listing.


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
        yield _Listed(reshaping.incarnation_of(known, one), request.topology, request.computation)
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
    at: bytes | None = start
    while at is not None:
        interval = known.locate(incarnation, at)
        if interval is None:
            return
        if interval.keys.start >= start:
            yield interval
        at = interval.keys.end if interval.keys.HasField("end") else None


def _to_token(place: _Listed, start: bytes) -> str:
    parts = [*(part.encode() for part in place.order), start]
    return ".".join(base64.urlsafe_b64encode(part).decode() for part in parts)


def _from_token(token: str) -> tuple[str, str, str, bytes]:
    try:
        kind, topology, name, start = (base64.urlsafe_b64decode(part) for part in token.split("."))
        return kind.decode(), topology.decode(), name.decode(), start
    except (binascii.Error, UnicodeDecodeError, ValueError) as error:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            "the page token is not one that this service gave",
            "leave it out to start again",
            reason="PAGE_TOKEN_INVALID",
        ) from error
