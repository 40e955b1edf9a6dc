"""StateService: programs look up the states of keys (section 4.4).

A look-up is linearizable: it returns a state that was the newest committed one at some moment between the request and
the answer. Invariant: an answer is sent only if the store has this owner's sequencer after the states were taken. An
owner that was deposed before that, and does not know it, answers nothing (figure 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.rpc.v1.state_pb2_grpc import StateServiceServicer
from millwheel.sdk.error_texts import error_message
from millwheel.store.contract import JournalHead, StateStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.process.owned_states import OwnedStates, not_owned

__all__ = ["FreshHeads", "StateService"]

_MAX_KEYS: Final = 1_000
_MAX_ANSWER_BYTES: Final = 4 << 20
"""An answer takes no further state once it has this many bytes. So it has at most 8 MiB: a state has at most 4 MiB."""
MAX_REQUESTS: Final = 256
"""Requests that are being answered at a time. More are refused, and asked again later."""
_ROWS_AT_ONCE: Final = 16
"""Rows that one read of the store returns. With ``_MAX_READS`` they bound the memory: 256 MiB of the largest states."""
_MAX_READS: Final = 4


class FreshHeads:
    """Reads journals' heads. Requests that come during one read share the next one, so their number is no load."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._reading: dict[str, asyncio.Task[JournalHead]] = {}
        self._next: dict[str, asyncio.Task[JournalHead]] = {}

    async def read(self, journal: str) -> JournalHead:
        """The head, from a read that begins after this call."""
        read = self._next.get(journal)
        if read is None:
            read = self._next[journal] = asyncio.create_task(self._read(journal, self._reading.get(journal)))
        # A caller that goes away does not end the read of the others.
        return await asyncio.shield(read)

    async def _read(self, journal: str, before: asyncio.Task[JournalHead] | None) -> JournalHead:
        if before is not None:
            await asyncio.wait([before])
        read = self._reading[journal] = self._next.pop(journal)
        try:
            return await self._store.read_head(journal)
        finally:
            if self._reading.get(journal) is read:
                del self._reading[journal]


class StateService(StateServiceServicer):
    """Answers for the intervals that this process owns."""

    def __init__(self, owned: OwnedStates, store: StateStore) -> None:
        self._owned = owned
        self._heads = FreshHeads(store)
        self._reads = asyncio.Semaphore(_MAX_READS)
        self._requests = 0

    async def GetStates(self, request: wire.GetStatesRequest, context: Any) -> wire.GetStatesResponse:
        """The states of some keys of one computation."""
        return await answering(context, lambda: self.answer(request))

    async def answer(self, request: wire.GetStatesRequest) -> wire.GetStatesResponse:
        if not 0 < len(request.keys) <= _MAX_KEYS:
            raise RequestError(
                FailureCode.INVALID_ARGUMENT, f"a request has 1 to {_MAX_KEYS:,} keys, not {len(request.keys):,}"
            )
        async with self._admitted():
            return await self._states(request)

    @asynccontextmanager
    async def _admitted(self) -> AsyncIterator[None]:
        if self._requests >= MAX_REQUESTS:
            raise RequestError(
                FailureCode.RESOURCE_EXHAUSTED,
                f"this worker is answering {MAX_REQUESTS} look-ups of states",
                "try again later, or ask for more keys at a time",
            )
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _states(self, request: wire.GetStatesRequest) -> wire.GetStatesResponse:
        by_journal: dict[str, list[bytes]] = {}
        for key in request.keys:
            by_journal.setdefault(self._owned.locate(request.incarnation, key), []).append(key)
        cores = {
            journal: self._owned.core(journal, f"an interval of {request.incarnation!r} with key {keys[0]!r}")
            for journal, keys in by_journal.items()
        }
        states: dict[bytes, wire.KeyState] = {}
        for journal, keys in by_journal.items():
            await self._take(cores[journal], keys, states)
        response = wire.GetStatesResponse()
        size = 0
        for key in request.keys:
            if key not in states or (size and size + len(states[key].state) > _MAX_ANSWER_BYTES):
                break
            size += len(states[key].state)
            response.states.append(states[key])
        return response

    async def _take(self, core: IntervalCore, keys: Sequence[bytes], states: dict[bytes, wire.KeyState]) -> None:
        """Add the states of an interval's keys: of all, or of the first ones if they are large.

        The cells have what is sealed, so the answer waits until the commits that changed them are in the journal. Other
        commits do not matter, and one that keeps nothing ends without an append. A key without a cell has exactly the
        state of its row (:mod:`millwheel.worker.interval.cache.cells`). If a commit changes it meanwhile, either state
        will do. The read of the head comes last: it shows that no successor had committed anything before it.
        """
        journal, cells = core.state.journal, core.state.cells.cached()
        cached = {key: cell for key in keys if (cell := cells.get(key)) is not None}
        sealed = max((cell.dirty for cell in cached.values()), default=0)
        encoded = {key: cell.encoded for key, cell in cached.items()}
        damaged: dict[bytes, str] = {}
        await self._add_rows(core, keys, encoded, damaged)
        await self._owned.committed(core, sealed)
        head = await self._heads.read(journal.name)
        if head.sequencer != journal.sequencer:
            raise not_owned(f"journal {journal.name} any more: its sequencer is {head.sequencer}")
        for number, key in enumerate(keys):
            if key in encoded or key in damaged:
                states[key] = _present(core, encoded.get(key, b""), damaged.get(key, ""))
            if number % 64 == 63:
                await asyncio.sleep(0)  # ``migrate`` is user code: other work gets its turn

    async def _add_rows(
        self, core: IntervalCore, keys: Sequence[bytes], encoded: dict[bytes, bytes], damaged: dict[bytes, str]
    ) -> None:
        """Read the rows of keys that have no cell into ``encoded``, some at a time, until the answer is full.

        Invariant: the first key is always answered. Else a caller that asks for the rest would never end.
        """
        missing = [key for key in keys if key not in encoded]
        size = sum(map(len, encoded.values()))
        for chunk in _chunks(missing) if core.state.cells.evicted else [missing]:
            if size > _MAX_ANSWER_BYTES and keys[0] not in chunk:
                return
            async with self._reads:
                rows = await self._owned.rows(core, chunk, damaged)
            encoded.update({key: rows.get(key, b"") for key in chunk if key not in damaged})
            size += sum(map(len, rows.values()))


def _chunks(keys: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (keys[start : start + _ROWS_AT_ONCE] for start in range(0, len(keys), _ROWS_AT_ONCE))


def _present(core: IntervalCore, encoded: bytes, damage: str) -> wire.KeyState:
    if damage or not encoded:
        return wire.KeyState(error=damage)
    try:
        return wire.KeyState(state=core.state.program.state.present(encoded))
    except Exception as error:  # of a codec, or of a migration in user code
        return wire.KeyState(error=error_message(error))
