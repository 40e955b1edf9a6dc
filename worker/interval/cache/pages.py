"""The pages of growing states in an interval: each is a cell, under a key derived from its key (section 4.4).

So a page is journaled, flushed, evicted and recovered like a key's state. A hook that needs a page without a cell is
undone. Its key is blocked until the page's row is read, as for a key without a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final
from weakref import ref

from millwheel.errors import CorruptValueError
from millwheel.model.page_keys import page_key
from millwheel.model.time import MAX_TIMESTAMP, TimeDomain
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.context import Context
from millwheel.sdk.effects import TimerSetting
from millwheel.sdk.error_texts import bare_message
from millwheel.sdk.errors import StateDamagedError, TooLargeError
from millwheel.sdk.growing.codec import reset
from millwheel.sdk.growing.fields import GrowingState
from millwheel.sdk.growing.nodes import Node, decode_node
from millwheel.sdk.growing.pages import PagesNeededError, page_bytes
from millwheel.sdk.scope import PAGES_TAG, UNSET
from millwheel.worker.interval.blocked_key_table import TimerItem
from millwheel.worker.interval.cache.cells import DECODED_FACTOR, CellCache
from millwheel.worker.interval.cache.pages_in_use import PagesInUse
from millwheel.worker.interval.failing_keys import ErrorKind
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.timers import TimerTable
from millwheel.worker.messages import HookFailed

__all__ = ["PageTable", "undoable"]

MAX_COLLECTED_PAGES: Final = 512
"""Pages of discarded collections that one commit deletes."""
_COLLECT_DELAY_US: Final = 100_000
"""The time between two such commits of a key, in microseconds."""
LEAST_READABLE_BYTES: Final = 32 << 20
"""Bytes of pages that a hook may always read, however small the cache is."""
_ADVICE: Final = "read a slice in each of several hooks, in a chain of timers, or give the worker a larger cache"


class PageTable:
    """Connects the growing states of one interval with the cells of their pages."""

    def __init__(self, setup: IntervalSetup, cells: CellCache, timers: TimerTable) -> None:
        """``timers``: those in processing time."""
        self._scope = setup.scope
        if setup.program.growing:
            setup.scope.growing = self
        self.cells = cells
        self._timers = timers
        self._most = max(setup.settings.cache_bytes // 2, LEAST_READABLE_BYTES)
        self.in_use = PagesInUse(setup.settings.cache_bytes // (2 * DECODED_FACTOR))
        """The pages that must stay in memory."""
        self._damaged: dict[bytes, dict[bytes, str]] = {}
        """By key: the pages that could not be read, each with the reason, until a hook that needs one has failed."""
        self.ended: PagesNeededError | StateDamagedError | None = None
        """The error that a hook was given and has not passed on yet. A hook may catch it by mistake."""
        self.context: Context[Any] | None = None
        """The context of the hook that runs. It counts the bytes of the pages that change, and is dropped with them."""
        self.reports: list[HookFailed] = []
        """Reports of discarded pages that could not be read."""

    def bind(self, context: Context[Any], state: GrowingState) -> None:
        """A hook's context has decoded a state: its pages are those of the context's key."""
        state._pages.source = _KeyPages(ref(self), context._key)

    def reset(self, state: GrowingState) -> None:
        """A hook empties its state."""
        reset(state)

    def release(self, key: bytes) -> None:
        """The key's hooks are committed or have failed. Its pages may be evicted, and damaged ones are read again."""
        self.in_use.release(key)
        self._damaged.pop(key, None)

    def page_damaged(self, key: bytes, row: bytes, why: str) -> None:
        """A page of a key cannot be read. The next hook of the key that needs it fails."""
        self._damaged.setdefault(key, {})[row] = why

    def need(self, key: bytes, numbers: list[int]) -> PagesNeededError:
        """The error that asks for pages. A hook cannot go on without the first, and may need the others.

        Raises:
            StateDamagedError: The first cannot be read.
            TooLargeError: The hook has read too much already.
        """
        damaged = self._damaged.get(key)
        if damaged:
            why = damaged.get(page_key(key, numbers[0]))
            if why is not None:
                self.ended = StateDamagedError(why)
                raise self.ended
            numbers = [number for number in numbers if page_key(key, number) not in damaged]
        room = self._most - self.in_use.size(key) - page_bytes(numbers[0])
        if room < 0:
            what = f"what a hook of key {key.decode('utf-8', 'backslashreplace')!r} reads of its state"
            raise TooLargeError(what, self._most - room, self._most, _ADVICE)
        wanted = numbers[:1]
        for number in numbers[1:]:
            room -= page_bytes(number)
            if room < 0:
                break
            wanted.append(number)
        self.ended = error = PagesNeededError(wanted)
        return error

    def request(self, key: bytes, error: PagesNeededError) -> None:
        """The pages of a hook that was undone are to be read."""
        self.in_use.ask(key, {page_key(key, number): page_bytes(number) for number in error.numbers})

    def collect(self, context: Context[Any]) -> None:
        """Delete some discarded pages of a key. A subtree whose top cannot be read is given up: its pages stay stored.

        This is no work of a user's, so no failure policy decides about it.
        """
        pages = context.state._pages
        try:
            pages.collect(MAX_COLLECTED_PAGES)
        except (StateDamagedError, CorruptValueError) as error:
            self.ended = None
            key, top = context._key, pages.garbage.pop()[0]
            pages.free(top)
            why = self._damaged.get(key, {}).get(page_key(key, top)) or bare_message(error)
            what = f"computation {self._scope.computation!r}, key {key.decode('utf-8', 'backslashreplace')!r}"
            message = f"{what}: a discarded page is deleted unread, and the pages below it stay in the store: {why}"
            kind = ErrorKind(type(error).__name__, "", permanent=False)
            self.reports.append(HookFailed(message, "process_timer", kind, error, stopped=False, endless=False))

    def changed(
        self, contexts: dict[bytes, Context[Any]], fired: dict[bytes, list[TimerItem]]
    ) -> list[tuple[bytes, bytes]]:
        """The changed pages of a batch, as rows. Empty: the page is deleted.

        If a key has discarded pages, it gets a timer that deletes some of them. Other work of the key runs before.
        """
        collects_at = self._scope.now + _COLLECT_DELAY_US
        rows: list[tuple[bytes, bytes]] = []
        for key, context in contexts.items():
            state = context._cell.value
            if state is UNSET:
                continue
            for number, node in state._pages.changed.items():
                rows.append((page_key(key, number), b"" if node is None else node.encode()))
            if state._pages.garbage:
                pending = self._timers.get(key, PAGES_TAG)
                over = any(tag == PAGES_TAG for _, _, tag in fired.get(key, ()))
                if over or pending is None or pending.at > collects_at:
                    context._timers = context._timers or {}
                    setting = TimerSetting(collects_at, MAX_TIMESTAMP, context._cause)
                    context._timers[TimeDomain.PROCESSING_TIME, PAGES_TAG] = setting
        return rows

    def settle(self, contexts: dict[bytes, Context[Any]]) -> None:
        """The changes of a batch are sealed, and its cells have their encodings."""
        for key, context in contexts.items():
            state = context._cell.value
            if state is not UNSET:
                for number, node in state._pages.changed.items():
                    cell = self.cells.find(page_key(key, number))
                    assert cell is not None, "the pages of a batch that was sealed are in the cache"
                    cell.value = UNSET if node is None else node
                state._pages.settled()
            self.release(key)


class _KeyPages:
    """The pages of one key (:class:`PageSource`).

    Invariant (G13): the state that has it does not lead to the cells, because the garbage collector does not know
    cells. So the table is referred to weakly. Its interval has it while hooks run.
    """

    def __init__(self, table: Callable[[], PageTable | None], key: bytes) -> None:
        self._find_table = table
        self._key = key

    @property
    def _table(self) -> PageTable:
        table = self._find_table()
        assert table is not None, "a state is used by hooks of its interval"
        return table

    def node(self, number: int) -> Node:
        """The node of a page."""
        table, row = self._table, page_key(self._key, number)
        cell, owner = table.cells.find(row), table.cells.find(self._key)
        if cell is None:
            raise table.need(self._key, [number])
        if owner is not None:
            cell.used = owner.used
        table.in_use.use(self._key, row, len(cell.encoded))
        if cell.value is UNSET:
            cell.value = decode_node(cell.encoded, f"the row of page {number} of key {self._key!r}")
        node: Node = cell.value
        return node

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Those of the pages that have no cell."""
        cells = self._table.cells
        return [number for number in numbers if page_key(self._key, number) not in cells]

    def need(self, numbers: list[int]) -> PagesNeededError:
        """The error that asks for these pages."""
        return self._table.need(self._key, numbers)

    def grew(self, size: int) -> None:
        """A page changes: it counts in the size of the commit."""
        table = self._table
        if table.context is not None:
            table.context._made(size)


def undoable(program: CompiledComputation, table: Callable[[], PageTable]) -> CompiledComputation:
    """A program with growing states. Its hooks end with the error that refused them a page, even if they caught it.

    ``table``: the pages of the interval.
    """

    def wrapped(hook: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def run(context: Any, work: Any) -> Any:
            pages = table()
            pages.context = context
            try:
                return hook(context, work)
            finally:
                pages.context = None
                ended, pages.ended = pages.ended, None
                if ended is not None:
                    raise ended

        return run

    def fire(context: Any, timer: Any) -> Any:
        if timer.tag == PAGES_TAG:
            table().collect(context)
            return None
        return program.process_timer(context, timer)

    records = {stream: wrapped(hook) for stream, hook in program.process_record.items()}
    return replace(program, process_record=records, process_timer=wrapped(fire))
