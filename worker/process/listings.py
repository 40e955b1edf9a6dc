"""Pages of an interval's keys and timers, for inspection.

What a page costs its owner is bounded. It looks once at each key that is in memory, some at a time, and other work runs
in between. From the store it reads one stretch of keys and the rows of the page, or the parts with spilled timers
whose times the page reaches. One page at a time is made in a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import nsmallest
from itertools import chain, islice
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from millwheel.model.keys import KeyInterval, past
from millwheel.model.page_keys import is_page_key, row_owner
from millwheel.model.time import TimeDomain
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.page_tokens import foreign_page_token
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.sdk.effects import TimerSetting
from millwheel.sdk.scope import PAGES_TAG
from millwheel.store.contract import CorruptValueError, PartId, StateStore
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.entry import TimerRow, decode_part, decode_rows
from millwheel.worker.interval.panes.table import WindowPanes
from millwheel.worker.interval.shown_panes import keys_in, pane_timers, panes_of, with_panes
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.process.owned_states import OwnedStates
from millwheel.worker.process.state_text import state_text

Found = TypeVar("Found", bound=Any)

__all__ = ["MAX_PAGE_SIZE", "KeyListing", "TimerListing", "page_size", "spilled_rows", "token_of", "users_timers"]

MAX_PAGE_SIZE: Final = 1_000
_DEFAULT_PAGE_SIZE: Final = 100
_SLICE: Final = 2_000
"""Keys and timers that are looked at in a row: some milliseconds."""
_MAX_READS: Final = 16
"""Calls of ``list_states`` for a page. After them it has what they found. Growing states may have many rows."""
_MAX_PASSES: Final = 8
"""How often a page of timers begins again, because timers went to the store or came from it."""
_LONGEST_STATE: Final = 4_096
"""The most bytes of a state whose text is listed. A page of 1,000 keys has 4 MiB of them at most."""
_ROWS_AT_ONCE: Final = 16
"""States that are read from the store at a time: at most 64 MiB. So many are decoded in a row, of 4 KiB each."""


def page_size(asked: int) -> int:
    """Return the size of a page for a request's ``page_size``."""
    return min(asked if asked > 0 else _DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)


class KeyListing:
    """Lists keys that have a state or a timer."""

    def __init__(self, owned: OwnedStates, store: StateStore) -> None:
        self._owned = owned
        self._store = store

    async def page(
        self, core: IntervalCore, within: KeyInterval, size: int, token: str, *, states: bool = False
    ) -> wire.ListKeysResponse:
        """Return the first ``size`` keys within bounds. They are those of the last sealed commit.

        ``states``: with the texts of their states, as far as these are short.
        """
        response = wire.ListKeysResponse(spilled_timers=core.state.timers.spilled.count)
        keys, response.next_page_token = await self.keys(core, within, size, token)
        await self._fill(core, keys, response, states=states)
        return response

    async def keys(self, core: IntervalCore, within: KeyInterval, size: int, token: str) -> tuple[list[bytes], str]:
        """Return the first ``size`` keys within bounds, and the token of the next page. Some may have nothing left."""
        state = core.state
        # The rows of the computation's other intervals are beside those of this one.
        rest = KeyInterval(_key_of(token)).intersection(within)
        bounds = None if rest is None else rest.intersection(state.config.keys)
        if bounds is None:
            return [], ""

        found = set[bytes]()
        for window in list(state.panes.windows.values()):  # before the cells, to which a pane may move meanwhile
            found.update(await _first(keys_in(window), size + 1, lambda key: _unpaged(key, bounds)))
            found = set(sorted(found)[: size + 1])
            await asyncio.sleep(0)
        found.update(await _first(state.cells.keys(), size + 1, lambda key: _unpaged(key, bounds)))
        for table in state.timers.tables.values():
            found.update(await _first(table.keys(), size + 1, lambda key: _with_timers(state, key, bounds)))
        unread: bytes | None = None
        if state.cells.evicted:
            rows, unread = await self._stored(core, bounds, size + 1)
            found.update(rows)
        listed = sorted(found if unread is None else (key for key in found if key < unread))
        following = listed[size] if len(listed) > size else unread
        return listed[:size], token_of(following)

    async def _stored(self, core: IntervalCore, bounds: KeyInterval, count: int) -> tuple[list[bytes], bytes | None]:
        """The first keys that have rows, and from where on no row was read. Pages of growing states are passed over."""
        found: list[bytes] = []
        start: bytes | None = bounds.start
        for _ in range(_MAX_READS):
            if start is None or len(found) >= count or (bounds.end is not None and start >= bounds.end):
                return found, None
            rows = await self._store.list_states(core.state.config.incarnation, start, bounds.end, count)
            found += [row for row in rows if not is_page_key(row)]
            if len(rows) < count:
                return found, None
            start = _after(rows[-1])
        return found, start

    async def _fill(
        self, core: IntervalCore, keys: Sequence[bytes], response: wire.ListKeysResponse, *, states: bool
    ) -> None:
        cells = core.state.cells
        sizes: dict[bytes, int] = {}
        texts: dict[bytes, str] = {}
        damaged: dict[bytes, str] = {}
        for first in range(0, len(keys), _ROWS_AT_ONCE):
            some = keys[first : first + _ROWS_AT_ONCE]
            # Noted before the store is read: meanwhile a cell may be evicted.
            blobs = {key: cell.encoded for key in some if (cell := cells.peek(key)) is not None}
            panes = {key: found for key in some if (found := panes_of(core.state.panes, key))}
            blobs |= await self._owned.rows(core, [key for key in some if key not in blobs], damaged)
            for key, found in panes.items():
                with suppress(Exception):  # of a migration in user code: the page of the key shows it
                    blobs[key] = with_panes(core.state, blobs.get(key, b""), found)
            sizes.update((key, len(blob)) for key, blob in blobs.items())
            if states:
                if first:
                    await asyncio.sleep(0)  # no other wait is certain here: all states may be in memory
                texts.update((key, _text(core, blob)) for key, blob in blobs.items() if len(blob) <= _LONGEST_STATE)
        for key in keys:
            held, timers, error = sizes.get(key, 0), _timer_count(core.state, key), _error(core, key)
            if held or timers or error or key in damaged:
                response.keys.add(
                    key=key,
                    state_bytes=held,
                    timers=timers,
                    damaged=key in damaged,
                    state_text=texts.get(key, ""),
                    error=error,
                )


def _text(core: IntervalCore, encoded: bytes) -> str:
    """The text of a state, if it is short. Empty if there is none, or it cannot be read."""
    text = ""
    with suppress(Exception):  # of a codec, or of a migration in user code: the page of the key shows it
        text = state_text(core.state.program.state.decode(encoded)) if encoded else ""
    return text if len(text.encode()) <= _LONGEST_STATE else ""


def _error(core: IntervalCore, key: bytes) -> str:
    blocked = core.state.blocked.keys.get(key)
    failure = None if blocked is None else blocked.failure
    return "" if failure is None else f"{failure.kind.error}: {failure.text}"


class _TimerPlace(NamedTuple):
    """Where a timer stands in the order of a listing."""

    at: int
    processing: bool
    key: bytes
    tag: str


class TimerListing:
    """Lists timers in the order of their times."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def page(self, core: IntervalCore, key: bytes | None, size: int, token: str) -> wire.ListTimersResponse:
        """Return the first ``size`` timers after the token's place, of one key or of all."""
        after = _place_of(token) if token else None
        state = core.state
        spilled = state.timers.spilled
        for _ in range(_MAX_PASSES):
            parts = set(spilled.parts)
            found: dict[_TimerPlace, int | None] = {}
            for domain in TimeDomain:
                found.update(await self._in_memory(core, domain, key, after, size + 1))
            found = await self._with_spilled(core, key, after, size + 1, found)
            if parts == spilled.parts.keys():
                break  # else timers may have come into memory
        else:
            raise RequestError(
                FailureCode.UNAVAILABLE, "timers go to the store and come back all the time", "try again"
            )
        places = sorted(found)
        response = wire.ListTimersResponse(input_watermark_us=state.watermark)
        for place in places[:size]:
            timer = response.timers.add(key=place.key).timer
            timer.tag, timer.timestamp_us, timer.wall_time = place.tag, place.at, place.processing
            if (hold := found[place]) is not None:
                timer.hold_us = hold
        if len(places) > size:
            response.next_page_token = msgspec.msgpack.encode(places[size - 1]).hex()
        return response

    async def _in_memory(
        self, core: IntervalCore, domain: TimeDomain, key: bytes | None, after: _TimerPlace | None, count: int
    ) -> dict[_TimerPlace, int | None]:
        table, processing = core.state.timers.tables[domain], domain is TimeDomain.PROCESSING_TIME

        def places(one: bytes) -> Iterator[tuple[_TimerPlace, int | None]]:
            for tag, setting in users_timers(table.of_key(one)).items():
                place = _TimerPlace(setting.at, processing, one, tag)
                if after is None or place > after:
                    yield place, setting.hold

        found: list[tuple[_TimerPlace, int | None]] = []
        for window in () if processing else list(core.state.panes.windows.values()):
            # One window at a time: all of them may have hundreds of thousands of panes. They come before the timers of
            # the table, to which a pane may move meanwhile.
            ends = await _first(keys_in(window, key), count, partial(_end_of, window, after))
            found = sorted(chain(found, ends))[:count]
            await asyncio.sleep(0)
        return dict(found) | dict(await _first(table.keys() if key is None else [key], count, places))

    async def _with_spilled(
        self,
        core: IntervalCore,
        key: bytes | None,
        after: _TimerPlace | None,
        count: int,
        found: dict[_TimerPlace, int | None],
    ) -> dict[_TimerPlace, int | None]:
        """Add the timers of parts, the earliest first, as far as the page reaches. One part is in memory at a time."""
        timers = core.state.timers
        for part in sorted(timers.spilled.parts.values(), key=lambda one: one.first):
            if key is not None and not part.may_have_key(key):
                continue
            found = dict(nsmallest(count, found.items()))
            if len(found) >= count and part.first > max(found).at:
                break
            async for rows in spilled_rows(self._store, core.state, part.rows):
                for row in timers.spilled.current_rows(rows):
                    place = _TimerPlace(row[3], row[1], row[0], row[2])
                    wanted = (key is None or row[0] == key) and (after is None or place > after) and row[2] != PAGES_TAG
                    if wanted and timers.tables[TimeDomain(row[1])].get(row[0], row[2]) is None:
                        found[place] = row[4]
                found = dict(nsmallest(count, found.items()))
        return dict(nsmallest(count, found.items()))


async def spilled_rows(store: StateStore, state: IntervalState, part: PartId) -> AsyncIterator[list[TimerRow]]:
    """Read the timers of a part, some at a time, in their order. Other work runs between two of them.

    There are none if the owner has loaded the part into memory meanwhile, and deleted it.

    Raises:
        CorruptValueError: The part is damaged.
    """
    journal = state.config.journal
    where = f"journal {journal}, base part {part.name}"
    try:
        (blob,) = await store.read_parts(journal, [part])
    except CorruptValueError:
        if part in state.timers.spilled.parts:
            raise
        return
    # Finding where the rows are takes a tenth of the time that decoding them takes.
    rows: list[msgspec.Raw] = decode_part(blob, list[msgspec.Raw], where)
    for first in range(0, len(rows), _SLICE):
        if first:
            await asyncio.sleep(0)
        yield decode_rows(rows[first : first + _SLICE], TimerRow, where)


async def _first(keys: Iterable[bytes], count: int, wanted: Callable[[bytes], Iterable[Found]]) -> list[Found]:
    """Return the ``count`` smallest of what ``wanted`` makes of each key. Other work runs between two slices."""
    looks = chain.from_iterable(chain((None,), wanted(key)) for key in list(keys))  # None: a key
    found: list[Found] = []
    for number, some in enumerate(iter(lambda: list(islice(looks, _SLICE)), [])):
        if number:
            await asyncio.sleep(0)
        # Sorting what is almost sorted is several times faster than a heap, which is Python's own code.
        found = sorted(chain(found, (one for one in some if one is not None)))[:count]
    return found


def _end_of(window: WindowPanes, after: _TimerPlace | None, key: bytes) -> Sequence[tuple[_TimerPlace, int | None]]:
    """The timer that the key's pane in the window stands for."""
    place = _TimerPlace(window.end, False, key, window.timer[2])
    return [(place, None)] if after is None or place > after else ()


def users_timers(timers: dict[str, TimerSetting]) -> dict[str, TimerSetting]:
    """The timers that users set."""
    timers.pop(PAGES_TAG, None)
    return timers


def _unpaged(key: bytes, bounds: KeyInterval) -> Sequence[bytes]:
    return [key] if key in bounds and not is_page_key(key) else ()


def _with_timers(state: IntervalState, key: bytes, bounds: KeyInterval) -> Sequence[bytes]:
    return [key] if key in bounds and _timer_count(state, key) else ()


def _timer_count(state: IntervalState, key: bytes) -> int:
    set_now = sum(len(users_timers(table.of_key(key))) for table in state.timers.tables.values())
    return set_now + len(pane_timers(state.panes, key))


def _after(row: bytes) -> bytes | None:
    """Where to read on after a row: behind all pages of a key, if it is one of them. None: it was the last place."""
    owner = row_owner(row)
    if row == owner:
        return row + b"\0"
    return past(owner) if owner else None


def token_of(key: bytes | None) -> str:
    """Return the token of a page that begins with a key. None: there is no further page."""
    return "" if key is None else key.hex()


def _key_of(token: str) -> bytes:
    try:
        return bytes.fromhex(token)
    except ValueError as error:
        raise foreign_page_token() from error


def _place_of(token: str) -> _TimerPlace:
    try:
        return msgspec.msgpack.decode(_key_of(token), type=_TimerPlace)
    except msgspec.MsgspecError as error:
        raise foreign_page_token() from error
