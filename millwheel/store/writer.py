"""The store thread: everything that is written goes through it, in the order in which it was asked for.

It takes all that is queued into one write with one sync (group commit). Long work, a flush of many
state rows say, is cut into slices, one between any two groups, so that an append never waits for more
than a slice. Callers are answered only after the sync that covers what they were told, refusals too:
what refused them was part of the same group.

Where a sync takes less time than two threads take to hand the interpreter to each other and back, small
groups are committed in place, on the caller's event loop, while the thread has nothing to do
(:class:`_Place`). A disk that syncs slowly never sees that: everything then goes through the thread.
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

_SMALL_BYTES: Final = 64 << 10
"""What is committed in place is no larger, so that neither the write nor the sync of it takes long."""
_FAST_SYNC_SECONDS: Final = 300e-6
"""A thread that comes back from the disk waits about as long until it gets the interpreter from a busy one."""
_REMEMBERED: Final = 9
_PROBE_EVERY: Final = 32
"""While syncs are slow, one of so many small groups is committed in place, to see whether they still are."""

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


class _Place:
    """Whether a small group may be committed in place: by how long the middle one of the last syncs there took.

    A single slow sync says little, as every disk has some. On the thread they cannot be timed: it would count the
    wait for the interpreter, too.
    """

    def __init__(self) -> None:
        self._last = deque([0.0] * _REMEMBERED, _REMEMBERED)
        self._typical = 0.0
        self._refused = 0

    def allows(self) -> bool:
        """Whether syncs have been fast of late, or it is time to try again."""
        if self._typical < _FAST_SYNC_SECONDS:
            return True
        self._refused += 1
        if self._refused < _PROBE_EVERY:
            return False
        self._refused = 0
        return True

    def took(self, seconds: float) -> None:
        """A sync in place took so long."""
        self._last.append(seconds)
        self._typical = sorted(self._last)[_REMEMBERED // 2]


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
        self._place = _Place()
        self._here: list[_Call] = []
        """Small calls that the event loop commits in place as soon as its other callbacks have run."""
        self._outstanding = 0
        """Calls handed to the thread and not answered: while there are any, nothing overtakes them."""
        self._writing = threading.Lock()
        """Held by whoever writes: the thread, or the event loop in place."""
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="millwheel-store", daemon=True)
        self._thread.start()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Have ``reload`` called, on the store thread, when cached values may differ from the stored ones."""
        self._reloads.append(reload)

    async def call(self, stage: Callable[[Batch], Result], *, sync: bool = True, size: int = 0) -> Result:
        """Run ``stage`` where the store is written, and return its result once what it put into the batch is.

        ``stage`` raises before it puts anything, or not at all. With ``sync`` False the answer need not
        wait for the disk. ``size``: about how many bytes it will put. Raises what ``stage`` raised;
        StoreUnavailableError if the write failed.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        call = _Call(future, stage, None, sync)
        if size <= _SMALL_BYTES and self._may_commit_here(loop):
            self._here.append(call)
            if len(self._here) == 1:
                loop.call_soon(self._commit_here)
        else:
            self._commit_here()
            self._enqueue(call)
        return await future

    def _may_commit_here(self, loop: asyncio.AbstractEventLoop) -> bool:
        if self._outstanding or self._stale or self._closed:
            return False
        if self._here:
            future = self._here[0].future
            return future is not None and future.get_loop() is loop
        return self._place.allows()

    def _commit_here(self) -> None:
        """Commit what waits for it in place; what cannot be goes to the thread, in the same order."""
        group, self._here = self._here, []
        if not group:
            return
        if self._closed or self._stale or not self._writing.acquire(blocking=False):
            for call in group:
                self._enqueue(call, fail=True)
            return
        try:
            self._commit(group, self._place.took)
        finally:
            self._writing.release()
        _resolve(group)

    async def call_sliced(self, work: SlicedWork) -> None:
        """Write ``work``, slice by slice, durably. Pieces of work are done one after the other."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit_here()
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

    def _enqueue(self, call: _Call, *, fail: bool = False) -> None:
        """Hand a call to the thread. If the store is closed, raise that, or with ``fail`` have the call answered so."""
        with self._closing:
            if not self._closed:
                self._outstanding += call.work is None
                self._queue.put(call)
                return
        closed = StoreUnavailableError("the store is closed")
        if not fail:
            raise closed
        call.error = closed
        _resolve([call])

    # On the store thread.

    def _run(self) -> None:
        while self._collect():
            if self._group:
                self._commit_group()
            if self._sliced:
                self._advance_slice()
        closed = StoreUnavailableError("the store was closed before the call was done")
        _answer([*self._group, *self._sliced], closed, _resolve)

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
        with self._writing:
            self._commit(group, None)
        _answer(group, None, self._answered)

    def _commit(self, group: list[_Call], timed: Callable[[float], None] | None) -> None:
        """Write the group with one sync; the calls then know their answers. Nothing is raised."""
        try:
            self._recover()
            batch = Batch(self._rocks)
            for call in group:
                _stage(call, batch)
            if batch:
                self._rocks.write(batch)
            # Invariant: an answer that waits for the disk rests on nothing that is not there. A head that is read, or
            # that refuses a call, may be of an earlier group that was not synced.
            if self._rocks.unsynced and any(call.sync for call in group):
                began = time.perf_counter()
                self._rocks.sync()
                if timed is not None:
                    timed(time.perf_counter() - began)
        except Exception as error:
            self._stale = True
            for call in group:
                call.error = error

    def _answered(self, calls: list[_Call]) -> None:
        """On the event loop: the thread has done these."""
        with self._closing:
            self._outstanding -= sum(call.work is None for call in calls)
        _resolve(calls)

    def _advance_slice(self) -> None:
        call = self._sliced[0]
        try:
            with self._writing:
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
        _answer([self._sliced.popleft()], error, _resolve)

    def _recover(self) -> None:
        """After a failure: open the database anew, and let everyone load what is really stored."""
        if self._stale:
            self._rocks.recover()
            for reload in self._reloads:
                reload()
            self._stale = False


def _stage(call: _Call, batch: Batch) -> None:
    """Stage one call of a group."""
    assert call.stage is not None
    try:
        call.answer = call.stage(batch)
    except Exception as error:
        call.error = error


def _answer(calls: list[_Call], error: Exception | None, resolve: Callable[[list[_Call]], None]) -> None:
    """Tell the callers by ``resolve`` on their event loops, waking each once. ``error`` overrides what they came to."""
    loops: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in calls:
        if error is not None:
            call.error = error
        if call.future is not None:
            loops.setdefault(call.future.get_loop(), []).append(call)
    for loop, waiting in loops.items():
        try:
            loop.call_soon_threadsafe(resolve, waiting)
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
