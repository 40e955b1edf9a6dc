"""HandoverService: prepares an interval's move, so that the interval is unavailable only for a moment (7.1).

Preparation is optional. Data that is not prepared, or has changed since, makes the opening slower but not wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import handover_pb2 as wire
from millwheel.rpc.v1.handover_pb2_grpc import HandoverServiceServicer
from millwheel.sdk.errors import MillwheelError
from millwheel.store.contract import JournalMissingError, StateStore, StoreError
from millwheel.worker.process.host import CoreHost
from millwheel.worker.process.opening import ReadAhead, needed_parts

__all__ = ["HandoverService"]

log = logging.getLogger("millwheel.worker")

KEPT_SECONDS: Final = 60.0
"""Seconds for which parts that were read ahead are kept if no opening uses them."""
KEPT_BYTES: Final = 256 << 20


class HandoverService(HandoverServiceServicer):
    """Prepares the release of intervals that this process runs, and the opening of intervals that it will run."""

    def __init__(
        self,
        find: Callable[[str, int], CoreHost | None],
        store: StateStore,
        ahead: ReadAhead,
        load_code: Callable[[IncarnationId], Awaitable[None]],
    ) -> None:
        """``find``: the host of a journal under a sequencer. ``load_code``: loads a computation's code."""
        self._find = find
        self._store = store
        self._ahead = ahead
        self._load_code = load_code

    async def PrepareRelease(self, request: wire.PrepareReleaseRequest, context: Any) -> wire.PrepareReleaseResponse:
        """Make the journal of an interval short while the interval continues to work."""
        return await answering(context, lambda: self._release(request))

    async def PrepareOpen(self, request: wire.PrepareOpenRequest, context: Any) -> wire.PrepareOpenResponse:
        """Read ahead what the opening of an interval needs."""
        return await answering(context, lambda: self._open(request))

    async def _release(self, request: wire.PrepareReleaseRequest) -> wire.PrepareReleaseResponse:
        host = self._find(request.journal, request.sequencer)
        if host is None:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"this worker does not own journal {request.journal!r} under sequencer {request.sequencer}",
                "ask the owner that the interval map names; it may have just moved",
                reason="NOT_OWNER",
            )
        prepared = await host.prepare_release()
        if prepared is None:
            raise RequestError(
                FailureCode.ABORTED, f"the interval of journal {request.journal!r} was lost meanwhile", ""
            )
        return wire.PrepareReleaseResponse(entries=prepared.entries, commit=prepared.commit)

    async def _open(self, request: wire.PrepareOpenRequest) -> wire.PrepareOpenResponse:
        try:
            await self._load_code(request.incarnation)
        except (MillwheelError, RequestError, OSError) as error:
            log.info("the code of %s is not loaded ahead: %s", request.incarnation, error)
        for journal in request.journals:
            try:
                await self._read(journal)
            except JournalMissingError:
                continue  # a child's own journal, which its opening creates
            except StoreError as error:
                log.info("journal %s is not read ahead: %s", journal, error)
        return wire.PrepareOpenResponse()

    async def _read(self, journal: str) -> None:
        head = await self._store.read_head(journal)
        loop = asyncio.get_running_loop()
        for part in needed_parts(head.parts):
            if (journal, part) in self._ahead:
                continue
            if sum(map(len, self._ahead.values())) > KEPT_BYTES:
                return
            (blob,) = await self._store.read_parts(journal, [part])
            self._ahead[journal, part] = blob
            # Store each part separately: the limit, the store or the caller may end the reading early.
            loop.call_later(KEPT_SECONDS, self._ahead.pop, (journal, part), None)
