"""StateService: programs look up the states of keys, or read all of them page by page (section 4.4).

A look-up is linearizable: it returns a state that was the newest committed one at some moment between the request and
the answer. Invariant: an answer is sent only if the store has this owner's sequencer after the states were taken. An
owner that was deposed before that, and does not know it, answers nothing (figure 12).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from millwheel.model.interval_map import interval_from_proto
from millwheel.model.time import TimeDomain
from millwheel.rpc.errors import answering
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import state_pb2 as wire
from millwheel.rpc.v1.state_pb2_grpc import StateServiceServicer
from millwheel.sdk.error_texts import error_message
from millwheel.store.contract import JournalHead, StateStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.shown_panes import pane_timers, panes_of, with_panes
from millwheel.worker.process.listings import KeyListing, token_of, users_timers
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
_MAX_PAGE_SIZE: Final = 10_000
_DEFAULT_PAGE_SIZE: Final = 1_000
_KEYS_AT_ONCE: Final = 1_000
"""Keys of a page that are taken in a row: some milliseconds."""
_TIMER_BYTES: Final = 32
"""Approximate bytes of a timer in an answer, beside its tag."""


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
        self._keys = KeyListing(owned, store)
        self._listing = asyncio.Lock()
        """The keys of one page are found at a time: that looks at each key of an interval."""

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

    async def ListStates(self, request: wire.ListStatesRequest, context: Any) -> wire.ListStatesResponse:
        """The keys of one interval, with their states, timers and holds."""
        return await answering(context, lambda: self.page(request))

    async def page(self, request: wire.ListStatesRequest) -> wire.ListStatesResponse:
        try:
            within = interval_from_proto(request.keys)
        except ValueError as error:
            raise RequestError(FailureCode.INVALID_ARGUMENT, str(error)) from error
        size = min(request.page_size if request.page_size > 0 else _DEFAULT_PAGE_SIZE, _MAX_PAGE_SIZE)
        async with self._admitted():
            async with self._listing:
                core = self._owned.core(request.journal, f"journal {request.journal!r}")
                keys, token = await self._keys.keys(core, within, size, request.page_token)
            return await self._page(core, keys, token)

    async def _page(self, core: IntervalCore, keys: Sequence[bytes], token: str) -> wire.ListStatesResponse:
        """The states of an interval's keys: of all, or of the first ones if they are large."""
        response = wire.ListStatesResponse(spilled_timers=core.state.timers.spilled.count, next_page_token=token)
        size = 0
        for chunk in _chunks(keys, _KEYS_AT_ONCE):
            for one in await self._listed(core, chunk):
                if size > _MAX_ANSWER_BYTES or not one.HasField("state"):
                    response.next_page_token = token_of(one.key)
                    return response
                if one.state.state or one.state.error or one.timers or one.HasField("hold_us"):
                    size += len(one.state.state) + sum(_TIMER_BYTES + len(timer.tag) for timer in one.timers)
                    response.states.append(one)
        return response

    async def _listed(self, core: IntervalCore, keys: Sequence[bytes]) -> list[wire.ListedState]:
        """What the owner has of some keys. Keys after the first ones have no state here if the states are large.

        Invariant: what is shown of a key in memory is of one commit. Nothing runs between here and the first wait of
        ``_take``, which has read the cells by then. All that is sealed is committed before ``_take`` returns.
        """
        listed = [_beside_state(core, key) for key in keys]
        states: dict[bytes, wire.KeyState] = {}
        await self._take(core, keys, states, core.state.journal.sealed)
        for one in listed:
            if one.key in states:
                one.state.CopyFrom(states[one.key])
        return listed

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

    async def _take(
        self, core: IntervalCore, keys: Sequence[bytes], states: dict[bytes, wire.KeyState], shown: int = 0
    ) -> None:
        """Add the states of an interval's keys: of all, or of the first ones if they are large.

        The cells have what is sealed, so the answer waits until the commits that changed them are in the journal, and
        commit ``shown``. Other commits do not matter, and one that keeps nothing ends without an append. A key without
        a cell has exactly the state of its row (:mod:`millwheel.worker.interval.cache.cells`). If a commit changes it
        meanwhile, either state will do. The read of the head comes last: it shows that no successor had committed
        anything before it.
        """
        journal, cells = core.state.journal, core.state.cells
        cached = {key: cell for key in keys if (cell := cells.peek(key)) is not None}
        sealed = max(shown, *(cell.dirty for cell in cached.values())) if cached else shown
        encoded = {key: cell.encoded for key, cell in cached.items()}
        damaged: dict[bytes, str] = {}
        panes = {key: found for key in keys if (found := panes_of(core.state.panes, key))}
        if panes:
            sealed = journal.sealed  # a pane does not say which commit changed it
        await self._add_rows(core, keys, encoded, damaged)
        await self._owned.committed(core, sealed)
        head = await self._heads.read(journal.name)
        if head.sequencer != journal.sequencer:
            raise not_owned(f"journal {journal.name} any more: its sequencer is {head.sequencer}")
        size = 0
        for number, key in enumerate(keys):
            if size > _MAX_ANSWER_BYTES:
                return  # all states of the cache would be copied for the first ones
            if key in encoded or key in damaged:
                states[key] = _present(core, encoded.get(key, b""), damaged.get(key, ""), panes.get(key, {}))
                size += len(states[key].state)
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
        for chunk in _chunks(missing, _ROWS_AT_ONCE) if core.state.cells.evicted else [missing]:
            if size > _MAX_ANSWER_BYTES and keys[0] not in chunk:
                return
            async with self._reads:
                rows = await self._owned.rows(core, chunk, damaged)
            encoded.update({key: rows.get(key, b"") for key in chunk if key not in damaged})
            size += sum(map(len, rows.values()))


def _chunks(keys: Sequence[bytes], size: int) -> Iterable[Sequence[bytes]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def _beside_state(core: IntervalCore, key: bytes) -> wire.ListedState:
    """What memory has of a key beside its state."""
    state, listed = core.state, wire.ListedState(key=key)
    for domain, table in state.timers.tables.items():
        timers = users_timers(table.of_key(key))
        if domain is TimeDomain.EVENT_TIME:
            timers |= pane_timers(state.panes, key)
        for tag, setting in sorted(timers.items()):
            timer = listed.timers.add(tag=tag, timestamp_us=setting.at, wall_time=domain is TimeDomain.PROCESSING_TIME)
            if setting.hold is not None:
                timer.hold_us = setting.hold
    if (hold := state.holds.of_keys.get(key)) is not None:
        listed.hold_us = hold
    return listed


def _present(core: IntervalCore, encoded: bytes, damage: str, panes: dict[tuple[int, int], Any]) -> wire.KeyState:
    if damage or not (encoded or panes):
        return wire.KeyState(error=damage)
    try:
        return wire.KeyState(state=core.state.program.state.present(with_panes(core.state, encoded, panes)))
    except Exception as error:  # of a codec, or of a migration in user code
        return wire.KeyState(error=error_message(error))
