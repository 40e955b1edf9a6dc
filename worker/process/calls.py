"""The calls that a core asks for and then waits for: to the store, the authority, the coordinator and coroutine hooks.

Each posts an event with its result. A call with an unknown outcome is repeated until the outcome is known. The append,
which every record needs, is in ``appends.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, assert_never

from millwheel.store.contract import (
    CorruptValueError,
    JournalMissingError,
    PartId,
    SequencerRefusedError,
    StateStore,
    StoreError,
)
from millwheel.store.repetition import RetriedCalls
from millwheel.worker.interval.hooks.failures import refuse_result
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    AsyncHook,
    CheckSequence,
    CopyParts,
    DeleteEntries,
    DeleteParts,
    Deposed,
    FenceJournal,
    FlushStates,
    HookFinished,
    IntervalEvent,
    OpenFailed,
    PartsMissing,
    PartsRead,
    PartsWritten,
    ReadSegments,
    ReadStates,
    SequenceChecked,
    StatesFlushed,
    StatesRead,
    WriteParts,
)
from millwheel.worker.process.opening import Opener, ReadAhead
from millwheel.worker.process.rows import read_rows

__all__ = ["Call", "CallPeers", "CallingHost", "HostCalls"]

log = logging.getLogger("millwheel.worker")

Call = (
    AcceptSequencer
    | CheckSequence
    | CopyParts
    | DeleteEntries
    | DeleteParts
    | FenceJournal
    | FlushStates
    | ReadSegments
    | ReadStates
    | WriteParts
)


class CallingHost(Protocol):
    """The host of a core that waits for a call."""

    journal: str
    closed: bool

    def post(self, event: IntervalEvent) -> None:
        """Let the core process ``event``."""


class CallPeers(Protocol):
    """The authority and the coordinator."""

    async def accept(self, request: AcceptSequencer) -> int:
        """Let the authority accept a sequencer.

        Returns:
            The watermark that the authority last broadcast, in microseconds.

        Raises:
            SequencerRefusedError: The authority refuses the sequencer.
        """

    async def sequence_lives(self, sequence: str) -> bool:
        """Whether a sender's sequence is alive, by a linearizable read."""


class HostCalls:
    """The calls of one core."""

    def __init__(
        self, host: CallingHost, store: StateStore, peers: CallPeers, retried: RetriedCalls, ahead: ReadAhead
    ) -> None:
        """``retried`` repeats calls. ``ahead``: base parts that were read ahead."""
        self._host = host
        self._store = store
        self._peers = peers
        self._ahead = ahead
        self._retried = retried

    def perform(self, call: Call) -> Coroutine[Any, Any, None]:
        """A coroutine that performs the call."""
        match call:
            case FlushStates():
                return self._flush(call)
            case ReadStates():
                return self._read_states(call)
            case WriteParts():
                return self._write_parts(call)
            case ReadSegments():
                return self._read_segments(call)
            case CopyParts():
                return self._copy_parts(call)
            case DeleteEntries():
                return self._tidy(partial(self._store.delete_entries, call.journal, call.below))
            case DeleteParts():
                return self._tidy(partial(self._store.delete_parts, call.journal, call.parts))
            case FenceJournal():
                return self._open(call)
            case AcceptSequencer():
                return self._accept(call)
            case CheckSequence():
                return self._check_sequence(call)
            case _:
                assert_never(call)

    # Start of ownership.

    async def _open(self, fence: FenceJournal) -> None:
        try:
            opened = await Opener(self._store, fence, self._retried.call, self._ahead).open()
        except (SequencerRefusedError, JournalMissingError, CorruptValueError) as error:
            log.error("journal %s cannot be opened: %s", fence.journal, error)
            damaged = isinstance(error, (JournalMissingError, CorruptValueError))
            self._host.post(OpenFailed(str(error), damaged=damaged))
            return
        self._host.post(opened)

    async def _accept(self, request: AcceptSequencer) -> None:
        try:
            watermark = await self._peers.accept(request)
            log.info("interval %s: serves, sequencer %d", self._host.journal, request.sequencer)
            self._host.post(Accepted(watermark))
        except SequencerRefusedError as error:
            self._host.post(Deposed(str(error)))
            return
        await self._tidy(partial(self._delete_leftovers, request.sequencer))

    async def _delete_leftovers(self, sequencer: int) -> None:
        """Delete parts that earlier owners wrote and no head names: late bases, and failed deletions.

        A head names parts of earlier owners only if the previous head named them. So no later head can name the others.
        """
        store, journal = self._store, self._host.journal
        older = {part for part in await store.list_parts(journal) if part.sequencer < sequencer}
        if leftovers := older.difference((await store.read_head(journal)).parts):
            await store.delete_parts(journal, sorted(leftovers))

    # Rows and parts.

    async def _read_states(self, read: ReadStates) -> None:
        damaged: dict[bytes, str] = {}
        reading = partial(read_rows, self._store, read.incarnation, read.keys, damaged)
        rows = await self._retried.call(reading)
        self._host.post(StatesRead(read.keys, rows, damaged))

    async def _flush(self, flush: FlushStates) -> None:
        await self._retried.call(
            lambda: self._store.write_states(flush.incarnation, flush.journal, flush.sequencer, flush.rows)
        )
        self._host.post(StatesFlushed(flush.number))

    async def _write_parts(self, write: WriteParts) -> None:
        for part, blob in write.parts.items():
            await self._retried.call(partial(self._store.write_part, write.journal, part, blob))
        self._host.post(PartsWritten(write.number))

    async def _read_segments(self, read: ReadSegments) -> None:
        by_journal: dict[str, list[PartId]] = {}
        for part in read.parts:
            by_journal.setdefault(read.elsewhere.get(part, read.journal), []).append(part)
        found: dict[PartId, bytes] = {}
        try:
            for journal, parts in by_journal.items():
                blobs = await self._retried.call(partial(self._store.read_parts, journal, parts))
                found.update(zip(parts, blobs, strict=True))
        except CorruptValueError as error:
            self._host.post(PartsMissing(read.parts, error.where, error.why))
            return
        self._host.post(PartsRead(found))

    async def _copy_parts(self, effect: CopyParts) -> None:
        """Copy one part after the other, because each may have a megabyte."""
        for journal, part, copy in effect.copies:
            (blob,) = await self._retried.call(partial(self._store.read_parts, journal, [part]))
            await self._retried.call(partial(self._store.write_part, effect.journal, copy, blob))
        self._host.post(PartsWritten(effect.number))

    async def _tidy(self, work: Callable[[], Awaitable[None]]) -> None:
        """Deletions may fail. A later deletion, the next takeover, or the deletion of the journal removes the rest."""
        try:
            await work()
        except StoreError as error:
            log.info("journal %s: a deletion failed and is left for later: %s", self._host.journal, error)

    # Senders and hooks.

    async def _check_sequence(self, check: CheckSequence) -> None:
        lives = await self._retried.call(partial(self._peers.sequence_lives, check.sequence))
        self._host.post(SequenceChecked(check.sequence, lives))

    async def run_hook(self, hook: AsyncHook) -> None:
        """Run a hook that is a coroutine."""
        error: BaseException | None = None
        try:
            result = await hook.coroutine
            if result is not None:
                refuse_result(getattr(hook.coroutine, "__qualname__", "a hook"), result)
        except asyncio.CancelledError:
            if self._host.closed:
                raise
            error = RuntimeError("the hook was cancelled")
        except (Exception, SystemExit) as raised:
            error = raised
        self._host.post(HookFinished(hook.hook, error))
