"""Requests every worker's load periodically, and acts on the reports (section 7.1).

The actions: release parents' journals; move, split and merge intervals; report keys too hot to split.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import grpc

from millwheel.coordination.contract import DamagedValueError
from millwheel.master.balancing import Balancer, HotKey
from millwheel.master.handover_hints import reshape
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import MergeIntervals, MoveInterval, ReleaseParents, ReshapeRequest
from millwheel.master.observer import Observer
from millwheel.master.settings import MasterSettings
from millwheel.master.term import Term
from millwheel.master.views import view_of
from millwheel.model.time import Duration, Timestamp, seconds
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import inspection_pb2, inspection_pb2_grpc

__all__ = ["FRESH", "Loads", "kind_of"]

FRESH: Final[Duration] = seconds(10)
"""How long a worker's load report counts as recent. A worker with an older one counts as not answering."""

_MAX_SHARE_OF_TIME: Final = 0.1
"""The maximum share of the master's time spent on these polls. With very many intervals it polls less often."""

_log = logging.getLogger(__name__)

Count = Callable[[str, str], None]


class Loads:
    """The load reports of one term, and the changes that it has started because of load."""

    def __init__(
        self, term: Term, observer: Observer, settings: MasterSettings, count: Count, clock: Callable[[], Timestamp]
    ) -> None:
        """``count`` is called for each attempted change, with its kind and its outcome."""
        self.book = LoadBook()
        self._term = term
        self._observer = observer
        self._every = settings.poll_loads_every / 1_000_000
        self._balancer = Balancer(settings.balancing, settings.intervals_per_computation)
        self._count = count
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._reported_hot: set[tuple[str, bytes]] = set()

    @property
    def hot_keys(self) -> tuple[HotKey, ...]:
        """The keys too hot to split, the hottest first."""
        return self._balancer.hot_keys

    async def run(self) -> None:
        """Run until cancelled."""
        await self._term.ready()
        try:
            while True:
                began = time.thread_time()
                try:
                    await self.poll()
                except DamagedValueError as error:
                    _log.debug("nothing is balanced: %s", error)
                except Exception:
                    _log.exception("loads could not be asked for; trying again")
                took = time.thread_time() - began
                await asyncio.sleep(max(self._every, took / _MAX_SHARE_OF_TIME))
        finally:
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def poll(self) -> None:
        """Request every worker's load once, and act on the reports."""
        known = self._term.catalog
        await asyncio.gather(*(self._ask(name, record.endpoint.address) for name, record in known.workers.items()))
        self.book.forget_gone(known)
        self._term.take_loads(self.book.costs())
        independent = self.book.independent(known)
        if independent:
            await self._release(ReleaseParents(independent))
        now = self._clock()
        for request in self._balancer.decide(view_of(known, self.book, now, FRESH), now):
            task = asyncio.ensure_future(self._carry_out(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._report_hot_keys()

    async def _carry_out(self, request: ReshapeRequest) -> None:
        what = _shown(request)
        try:
            await reshape(self._term, self._observer, request)
        except RequestError as error:
            _log.info("not done for the load's sake: %s: %s", what, error)
            self._count(kind_of(request), "refused")
        else:
            _log.info("done for the load's sake: %s", what)
            self._count(kind_of(request), "done")
        finally:
            self._balancer.ended(request, self._clock())

    def _report_hot_keys(self) -> None:
        """Log each hot key once, for as long as it stays hot."""
        hot = {(one.incarnation, one.key): one for one in self.hot_keys}
        for (incarnation, key), one in hot.items():
            if (incarnation, key) not in self._reported_hot:
                _log.warning(
                    "key %r of %s is too hot: it has %.0f%% of its interval's records, and no split relieves that",
                    key.decode("utf-8", "backslashreplace"),
                    incarnation,
                    one.share * 100,
                )
        self._reported_hot = set(hot)

    async def _ask(self, worker: str, address: str) -> None:
        stub = inspection_pb2_grpc.InspectionServiceStub(self._observer.channel(address))
        self.book.on_request(worker, self._clock())
        try:
            load = await stub.GetWorkerLoad(inspection_pb2.GetWorkerLoadRequest(), timeout=self._every)
        except grpc.aio.AioRpcError as error:
            _log.debug("worker %s reported no load: %s", worker, error.code())
        else:
            self.book.on_load(worker, load, self._clock())

    async def _release(self, request: ReleaseParents) -> None:
        try:
            await self._term.ask(request)
        except RequestError as error:
            _log.info("parents' journals are released later: %s", error)


def kind_of(request: ReshapeRequest) -> str:
    """``move``, ``split`` or ``merge``."""
    if isinstance(request, MoveInterval):
        return "move"
    return "merge" if isinstance(request, MergeIntervals) else "split"


def _shown(request: ReshapeRequest) -> str:
    journal = request.interval.journal
    if isinstance(request, MoveInterval):
        return f"move of {journal} to {request.worker}"
    if isinstance(request, MergeIntervals):
        return f"merge of {journal} with the next, at {request.worker}"
    return f"split of {journal} at {request.at.decode('utf-8', 'backslashreplace')!r}"
