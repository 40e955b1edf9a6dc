"""Hands intervals over with little delay: first the owners are notified, then the interval map changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final

import grpc

from millwheel.master import reshape_plans
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import Intervals, MergeIntervals, MoveInterval, ReshapeRequest
from millwheel.master.observer import Observer
from millwheel.master.term import Term
from millwheel.model.catalog import Catalog
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import handover_pb2 as wire
from millwheel.rpc.v1 import handover_pb2_grpc

__all__ = ["refuse_quarantined", "reshape"]

_DEADLINE_SECONDS: Final = 2.0
"""Time limit of a hint in seconds. The handover continues without an owner that does not answer in time."""

_log = logging.getLogger(__name__)


async def reshape(term: Term, observer: Observer, request: ReshapeRequest) -> Intervals:
    """Move, split or merge: first hints to the owners, then one transaction. RequestError if it is impossible."""
    change = reshape_plans.interval_change(term.catalog, request, term.core.loads)
    if change is not None:
        await _prepare(observer, change)
        request = change.request
    answer = await term.ask(request)
    assert isinstance(answer, Intervals)
    return answer


def refuse_quarantined(known: Catalog, request: ReshapeRequest, book: LoadBook) -> None:
    """Raise RequestError for a split or merge of an interval that a damaged value has blocked.

    Nothing in such an interval's journal can be read. Its children would be blocked too, and so would a neighbour.
    """
    if isinstance(request, MoveInterval) or reshape_plans.repeated(known, request) is not None:
        return
    places = [reshape_plans.find(known, request.interval)]
    if isinstance(request, MergeIntervals) and places[0].keys.end is not None:
        places.append(reshape_plans.find_next(known, places[0]))
    for place in places:
        load = book.load_of(place.interval)
        if load is not None and load.quarantined:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"{reshape_plans.shown(place)} stands still, for what is stored of it is damaged: {load.damage}",
                "restore what is damaged from a snapshot or a replica, then `millwheel interval move` it",
                reason="INTERVAL_QUARANTINED",
            )


async def _prepare(observer: Observer, change: reshape_plans.IntervalChange) -> None:
    """First let the old owners shorten the journals to read, then let the new owners read them ahead."""
    releases = []
    for one in change.releases:
        stub = handover_pb2_grpc.HandoverServiceStub(observer.channel(one.owner.address))
        release = wire.PrepareReleaseRequest(journal=one.journal, sequencer=one.sequencer)
        releases.append(_hint(stub.PrepareRelease(release, timeout=_DEADLINE_SECONDS), one.owner.worker_id))
    await asyncio.gather(*releases)
    opens = []
    for one in change.opens:
        stub = handover_pb2_grpc.HandoverServiceStub(observer.channel(one.owner.address))
        ahead = wire.PrepareOpenRequest(
            incarnation=change.incarnation, journals=reshape_plans.journals_to_read(one), keys=one.keys
        )
        opens.append(_hint(stub.PrepareOpen(ahead, timeout=_DEADLINE_SECONDS), one.owner.worker_id))
    await asyncio.gather(*opens)


async def _hint(call: Awaitable[object], worker: str) -> None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        _log.info(
            "worker %s was not notified of a handover in time (%s): it takes a little longer", worker, error.code()
        )
