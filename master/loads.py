"""Asks every worker for its load, again and again, and has done what follows from the answers (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

import grpc

from millwheel.core.time import Duration, Timestamp, seconds
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import ReleaseParents
from millwheel.master.observer import Observer
from millwheel.master.term import Term
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import inspection_pb2, inspection_pb2_grpc

__all__ = ["FRESH", "Loads"]

FRESH: Final[Duration] = seconds(10)
"""For how long a worker's word on its load is news; older, the worker is taken not to answer."""

_MOST_OF_THE_TIME: Final = 0.1
"""Of the master's time that may go into asking; with very many intervals it asks less often."""

_log = logging.getLogger(__name__)


class Loads:
    """What one term knows of loads."""

    def __init__(self, term: Term, observer: Observer, poll_every: Duration, clock: Callable[[], Timestamp]) -> None:
        """``poll_every``: how far apart the workers are asked at least, and how long each may take to answer."""
        self.book = LoadBook()
        self._term = term
        self._observer = observer
        self._every = poll_every / 1_000_000
        self._clock = clock

    async def run(self) -> None:
        """Go on until cancelled."""
        await self._term.ready()
        while True:
            began = time.thread_time()
            try:
                await self.poll()
            except Exception:
                _log.exception("loads could not be asked for; trying again")
            took = time.thread_time() - began
            await asyncio.sleep(max(self._every, took / _MOST_OF_THE_TIME))

    async def poll(self) -> None:
        """Ask every worker once, and act on what they tell."""
        known = self._term.catalog
        await asyncio.gather(*(self._ask(name, record.endpoint.address) for name, record in known.workers.items()))
        self.book.forget_gone(known)
        self._term.core.weighed(self.book.costs())
        independent = self.book.independent(known)
        if independent:
            await self._release(ReleaseParents(independent))

    async def _ask(self, worker: str, address: str) -> None:
        stub = inspection_pb2_grpc.InspectionServiceStub(self._observer.channel(address))
        try:
            load = await stub.GetWorkerLoad(inspection_pb2.GetWorkerLoadRequest(), timeout=self._every)
        except grpc.aio.AioRpcError as error:
            _log.debug("worker %s told no load: %s", worker, error.code())
        else:
            self.book.heard(worker, load, self._clock())

    async def _release(self, request: ReleaseParents) -> None:
        try:
            await self._term.ask(request)
        except RequestError as error:
            _log.info("parents' journals are let go later: %s", error)
