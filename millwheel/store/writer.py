"""The store thread: everything that is written goes through it, in the order in which it was asked for.

It takes all that is queued into one write with one sync (group commit). Long work, a flush of many
state rows say, is cut into slices, one between any two groups, so that an append never waits for more
than a slice. Callers are answered only after the sync that covers what they were told, refusals too:
what refused them was part of the same group.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from millwheel.store.contract import StoreUnavailableError
from millwheel.store.rocks import Batch, Rocks

__all__ = ["SlicedWork", "StoreThread"]

Result = TypeVar("Result")

_YIELD_SECONDS: Final = 20e-6
"""A pause after each slice, so that another thread gets the interpreter: it is held while a slice is built."""


class SlicedWork(Protocol):
    """Work that is written in slices, each atomic by itself."""

    def advance(self, batch: Batch) -> bool:
        """Put the next slice into ``batch``; whether that was the last one."""


@dataclass(slots=True)
class _Call:
    """One call that waits. ``answer`` and ``error`` are what it will be told."""

    future: asyncio.Future[Any] | None
    stage: Callable[[Batch], Any] | None
    work: SlicedWork | None
    sync: bool
    answer: Any = None
    error: BaseException | None = None


class StoreThread:
    """Owns the writing side of a :class:`~millwheel.store.rocks.Rocks` until :meth:`close`."""

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        self._group: list[_Call] = []
        self._sliced: deque[_Call] = deque()
        self._reloads: list[Callable[[], None]] = []
        self._stale = False
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="millwheel-store", daemon=True)
        self._thread.start()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Have ``reload`` called, on the store thread, when cached values may differ from the stored ones."""
        self._reloads.append(reload)

    async def call(self, stage: Callable[[Batch], Result], *, sync: bool = True) -> Result:
        """Run ``stage`` on the store thread and return its result once what it put into the batch is written.

        ``stage`` raises before it puts anything, or not at all. With ``sync`` False the answer need not
        wait for the disk. Raises what ``stage`` raised; StoreUnavailableError if the write failed.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._enqueue(_Call(future, stage, None, sync))
        return await future

    async def call_sliced(self, work: SlicedWork) -> None:
        """Write ``work``, slice by slice, durably. Pieces of work are done one after the other."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(_Call(future, None, work, True))
        await future

    def call_later(self, work: SlicedWork) -> None:
        """Do ``work`` some time, if the store is not closed before; nobody waits for it. From any thread."""
        self._queue.put(_Call(None, None, work, False))

    def close(self) -> None:
        """Fail what is not yet written with StoreUnavailableError, and end the thread."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()

    def _enqueue(self, call: _Call) -> None:
        with self._closing:
            if self._closed:
                raise StoreUnavailableError("the store is closed")
            self._queue.put(call)

    # On the store thread.

    def _run(self) -> None:
        while self._collect():
            if self._group:
                self._commit_group()
            if self._sliced:
                self._advance_slice()
        closed = StoreUnavailableError("the store was closed before the call was done")
        _answer([*self._group, *self._sliced], closed)

    def _collect(self) -> bool:
        """Sort everything that is queued into group and sliced work, waiting if there is nothing to do."""
        try:
            call = self._queue.get(block=not self._sliced)
            while call is not None:
                (self._group if call.work is None else self._sliced).append(call)
                call = self._queue.get_nowait()
        except Empty:
            return True
        return False

    def _commit_group(self) -> None:
        group, self._group = self._group, []
        try:
            self._recover()
            batch = Batch(self._rocks)
            sync = False
            for call in group:
                sync |= _stage(call, batch) and call.sync
            if batch:
                self._rocks.write(batch)
                if sync:
                    self._rocks.sync()
        except Exception as error:
            self._stale = True
            _answer(group, error)
        else:
            _answer(group, None)

    def _advance_slice(self) -> None:
        call = self._sliced[0]
        try:
            self._recover()
            batch = Batch(self._rocks)
            assert call.work is not None
            done = call.work.advance(batch)
            if batch:
                self._rocks.write(batch)
            if done and call.sync:
                self._rocks.sync()
        except StoreUnavailableError as error:
            self._stale = True
            self._end_sliced(error)
        except Exception as error:
            self._end_sliced(error)
        else:
            if done:
                self._end_sliced(None)
            time.sleep(_YIELD_SECONDS)

    def _end_sliced(self, error: Exception | None) -> None:
        _answer([self._sliced.popleft()], error)

    def _recover(self) -> None:
        """After a failure: open the database anew, and let everyone load what is really stored."""
        if self._stale:
            self._rocks.recover()
            for reload in self._reloads:
                reload()
            self._stale = False


def _stage(call: _Call, batch: Batch) -> bool:
    """Stage one call of a group; whether it did without an error."""
    assert call.stage is not None
    try:
        call.answer = call.stage(batch)
    except Exception as error:
        call.error = error
        return False
    return True


def _answer(calls: list[_Call], error: Exception | None) -> None:
    """Tell the callers, waking each event loop once. ``error`` overrides what the calls came to by themselves."""
    loops: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in calls:
        if error is not None:
            call.error = error
        if call.future is not None:
            loops.setdefault(call.future.get_loop(), []).append(call)
    for loop, waiting in loops.items():
        try:
            loop.call_soon_threadsafe(_resolve, waiting)
        except RuntimeError:
            # The loop has ended, and everyone who waited on it with it.
            continue


def _resolve(calls: list[_Call]) -> None:
    for call in calls:
        future = call.future
        if future is None or future.done():
            continue
        if call.error is None:
            future.set_result(call.answer)
        else:
            future.set_exception(_own_copy(call.error) if len(calls) > 1 else call.error)


def _own_copy(error: BaseException) -> BaseException:
    """Many callers share one failure; each gets an exception of its own, whose traceback is its own."""
    return StoreUnavailableError(*error.args) if isinstance(error, StoreUnavailableError) else error
