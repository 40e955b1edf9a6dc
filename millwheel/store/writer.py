"""The store thread: all writes go through it, in the order of the calls.

The thread puts all queued calls into one write with one sync (group commit). Long work, such as a flush of many state
rows, is cut into slices. Between two groups at most one slice is written, so an append waits for one slice at most.

A caller gets its result only after the sync that makes the result durable. This includes refusals: the write that
caused a refusal may be part of the same group.

On some disks a sync takes less time than a handover of the interpreter lock to another thread and back. There, small
groups are committed in place, on the caller's event loop (:mod:`millwheel.store.commit_place`). While the thread has
calls, small ones wait until it has none. Were they queued behind those, a busy server would hand over every commit
after its first large one.
On a disk with slow syncs all writes go through the thread.

An *early* call is written on the event loop, and has its outcome as soon as it is written. One sync follows for all
that are written in the same run of the loop's queue, in place or by the thread. :meth:`StoreThread.after_sync` has what
must wait for it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeVar

from millwheel.store.commit_place import CommitPlace
from millwheel.store.contract import StoreUnavailableError
from millwheel.store.held_calls import HeldCalls
from millwheel.store.rocks import Rocks, RowBatch

__all__ = ["SLICE_WAIT_SECONDS", "Notice", "SlicedWork", "StoreThread", "rest_after"]

Result = TypeVar("Result")

_SMALL_BYTES: Final = 64 << 10
"""The largest call that is committed in place, so that its write and sync stay short."""
_SYNC_AGAIN_SECONDS: Final = 0.1
"""After how long the thread is asked again for a sync that has failed."""
SLICE_WAIT_SECONDS: Final = 0.0005
"""How long the event loop waits for the slice that is being written, before it queues its calls for the thread.

Most slices take less. By the thread, each commit of a record's way would have a handover and a sync of its own."""
MAX_SLICES_HERE_BYTES: Final = 64 << 10
"""The most bytes of slices that a sync on the event loop takes along: some tenths of a millisecond."""
_SHORTEST_REST_SECONDS: Final = 20e-6
"""The pause after each slice. Building a slice holds the interpreter lock, so the pause lets other threads run."""
_LONGEST_REST_SECONDS: Final = 0.001
"""Up to this time, the pause is as long as its slice. So the event loop has half of the time, or more."""


class SlicedWork(Protocol):
    """Work that is written in slices. Each slice is atomic."""

    def advance(self, batch: RowBatch) -> bool:
        """Put the next slice into ``batch``. Return whether it was the last one."""


class Notice:
    """Stands for the future of a call whose caller has a function instead. So the call needs no task."""

    __slots__ = ("_loop", "_notify", "written")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        notify: Callable[[BaseException | None], None],
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            loop: Runs ``notify``. Its handler gets what that raises.
            notify: Gets the error of the call, or None.
            written: Runs under the write lock once the call has succeeded, before ``notify``. It must not raise.
        """
        self._loop = loop
        self._notify = notify
        self.written = written

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The caller's event loop."""
        return self._loop

    def done(self) -> bool:
        """Always False: a notice is not cancelled. A caller that needs no answer any more ignores it."""
        return False

    def set_result(self, _: object) -> None:
        """The call has succeeded."""
        self._notify(None)

    def set_exception(self, error: BaseException) -> None:
        """The call has failed."""
        self._notify(error)


@dataclass(slots=True)
class WriteCall:
    """One waiting call. ``answer`` or ``error`` is the caller's result."""

    future: asyncio.Future[Any] | Notice | None
    stage: Callable[[RowBatch], Any] | None
    work: SlicedWork | None
    sync: bool
    early: bool = False
    """Whether it may have its outcome once it is written, before the sync."""
    answer: Any = None
    error: BaseException | None = None


class StoreThread:
    """Does all writes to a :class:`~millwheel.store.rocks.Rocks`, until :meth:`close`.

    It has many attributes: the queues of the thread and of the event loop, and what is held until a sync.
    """

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._queue: SimpleQueue[WriteCall | None] = SimpleQueue()
        self._group: list[WriteCall] = []
        self._sliced: deque[WriteCall] = deque()
        self._reloads: list[Callable[[], None]] = []
        self._stale = False
        self._closed = False
        self._place = CommitPlace()
        self._here: list[WriteCall] = []
        """Small calls that the event loop commits in place when its other ready callbacks have run and the thread
        has no calls."""
        self._outstanding = 0
        """Calls queued for the thread and not answered yet. Meanwhile no call is committed in place: order is kept.

        Invariant: if ``_here`` has calls, their loop has ``_commit_here`` to run, or ``_outstanding`` is above 0. Who
        could break it: the thread, when it answers its last call while the loop adds one. So a call is added before
        ``_outstanding`` is read, and ``_here`` is read after ``_outstanding`` is lowered."""
        self._held = HeldCalls()
        self._early_loop: asyncio.AbstractEventLoop | None = None
        """The loop of the early calls, once there was one. All later calls are of this loop: it runs ``_step`` for
        them, and gives them their outcomes."""
        self._step_wanted = False
        """Whether ``_step`` is going to run on the event loop."""
        self._soon: Callable[[Callable[[], None]], object] | None = None
        """Lets the event loop run ``_step``. None: by its ``call_soon``."""
        self._writing = threading.Lock()
        """The lock of the writer: the thread, or the event loop in place."""
        self._unsynced_slices = 0
        """The bytes of slices that are written and not synced. The next sync takes longer by them."""
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="millwheel-store", daemon=True)
        self._thread.start()

    def on_reload(self, reload: Callable[[], None]) -> None:
        """Register ``reload``. The store thread calls it when cached values may differ from the stored ones."""
        self._reloads.append(reload)

    async def call(self, stage: Callable[[RowBatch], Result], *, sync: bool = True, size: int = 0) -> Result:
        """Run ``stage`` under the write lock, commit the batch that it fills, and return its result.

        Args:
            stage: fills the batch. If it raises, it raises before it changes the batch.
            sync: if False, the result may be returned before the batch is on disk.
            size: about how many bytes ``stage`` puts into the batch.

        Raises:
            StoreUnavailableError: if the write failed. An error of ``stage`` is raised as it is.
        """
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.begin(future, stage, sync=sync, size=size)
        return await future

    def begin(
        self,
        future: asyncio.Future[Any] | Notice,
        stage: Callable[[RowBatch], object],
        *,
        sync: bool = True,
        size: int = 0,
        soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """As :meth:`call`, from the loop of ``future``, which gets the result or the error.

        ``soon`` lets that loop run a call soon. With it, an outcome in place comes before the sync. What leaves the
        process because of it must wait for that (:meth:`after_sync`).
        """
        loop = future.get_loop()
        if soon is not None and self._early_loop is None:
            self._early_loop = loop
        assert self._early_loop in (None, loop), "a store with early calls has calls of their event loop only"
        call = WriteCall(future, stage, None, sync, soon is not None)
        if size <= _SMALL_BYTES and self._may_commit_here(call, loop):
            self._here.append(call)
            self._soon = soon
            if not self._outstanding:
                self._want_step(loop)
        else:
            self._commit_here()
            self._enqueue(call, fail=True)

    def _may_commit_here(self, call: WriteCall, loop: asyncio.AbstractEventLoop) -> bool:
        if self._stale or self._closed:
            return False
        if self._here and (first := self._here[0].future) is not None and first.get_loop() is not loop:
            return False
        # An early call needs no sync of its own, and a write takes as long on the thread.
        return call.early or any(not one.early for one in self._here) or self._place.allows(time.perf_counter())

    def after_sync(self, call: Callable[[], None]) -> None:
        """Run ``call`` when all outcomes so far are on the disk: at once, unless an early one waits for its sync.

        Calls keep their order. The event loop calls this.
        """
        self._held.run(call)

    def _want_step(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._step_wanted:
            self._step_wanted = True
            (self._soon or loop.call_soon)(self._step)

    def _step(self) -> None:
        """Commit the calls that wait. If there are none, sync what has had its outcome before its sync.

        Invariant (G8): while calls are held, ``_step`` is going to run, or the thread syncs for them. And appends that
        follow one another put the sync off for a short time only.
        """
        self._step_wanted = False
        refuses = self._stale or self._closed  # then all that waits gets its error now
        if self._here and (refuses or not self._held.is_due(time.perf_counter())):
            self._commit_here()
        elif self._held.waits:
            self._sync_here()

    def _commit_here(self) -> None:
        """Commit the waiting calls in place. If that is not possible, queue them for the thread in the same order."""
        group, self._here = self._here, []
        if not group:
            return
        if self._outstanding or self._closed or self._stale or not self._may_write():
            for call in group:
                self._enqueue(call, fail=True)
            if self._held.waits:  # this may have been the step that was to sync for them
                self._want_step(asyncio.get_running_loop())
            return
        now = time.perf_counter()
        sync = any(call.sync and not call.early for call in group)
        try:
            if (seconds := self._commit(group, sync=sync)) is not None:
                self._place.took(seconds)
            if self._rocks.unsynced and any(call.sync and call.error is None for call in group):
                self._held.begin(now)
        finally:
            self._writing.release()
        if self._held.waits and not self._rocks.unsynced:
            self._held.release()
        resolve(group)
        if self._held.waits:
            self._want_step(asyncio.get_running_loop())

    def _may_write(self) -> bool:
        """Take the lock of the writer, unless the thread keeps it. Without calls, the thread has it for slices only.

        Slices that are not synced make the next sync long. Above some bytes the thread does it.
        """
        if not self._writing.acquire(timeout=SLICE_WAIT_SECONDS):
            return False
        if self._closed or self._unsynced_slices > MAX_SLICES_HERE_BYTES:
            self._writing.release()
            return False
        return True

    def _sync_here(self) -> None:
        """Sync what calls are held for: in place, or by the thread if the disk is slow or that is not possible."""
        loop, began = asyncio.get_running_loop(), time.perf_counter()
        possible = not (self._outstanding or self._closed or self._stale) and self._place.allows(began)
        if possible and self._may_write():
            try:
                if self._rocks.unsynced and (seconds := self._sync()) is not None:
                    self._place.took(seconds)
            except Exception:
                self._stale = True
            finally:
                self._writing.release()
            if not self._stale:
                self._held.release()
                if self._here:
                    self._want_step(loop)
                return
        self._enqueue(WriteCall(Notice(loop, partial(self._synced, self._held.begun)), _nothing, None, True), fail=True)

    def _synced(self, begun: int, error: BaseException | None) -> None:
        """The thread has synced. ``begun``: more may have been written since. That needs another sync.

        After an error the thread is asked again. The calls stay held: what they depend on may not be on the disk.
        """
        loop = asyncio.get_running_loop()
        if error is None and begun == self._held.begun:
            self._held.release()
        elif error is None:
            self._want_step(loop)
        elif not self._closed:
            loop.call_later(_SYNC_AGAIN_SECONDS, self._want_step, loop)

    async def call_sliced(self, work: SlicedWork) -> None:
        """Write ``work`` slice by slice, durably. Only one piece of work runs at a time."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._commit_here()
        self._enqueue(WriteCall(future, None, work, True))
        await future

    def call_later(self, work: SlicedWork) -> None:
        """Queue ``work`` and return at once. It is lost if the store closes first. Any thread may call this."""
        self._queue.put(WriteCall(None, None, work, False))

    def close(self) -> None:
        """Fail all unwritten calls with StoreUnavailableError, and end the thread."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()
        with self._writing:  # the event loop may be committing in place, and nothing begins to any more
            pass

    def _enqueue(self, call: WriteCall, *, fail: bool = False) -> None:
        """Queue a call for the thread. If the store is closed, raise, or with ``fail`` resolve the call so."""
        with self._closing:
            if not self._closed:
                self._outstanding += call.work is None
                self._queue.put(call)
                return
        closed = StoreUnavailableError("the store is closed")
        if not fail:
            raise closed
        call.error = closed
        resolve([call])

    # The methods from here on run on the store thread.

    def _run(self) -> None:
        while self._collect():
            if self._group:
                self._commit_group()
            if self._sliced:
                time.sleep(self._advance_slice())
        closed = StoreUnavailableError("the store was closed before the call was done")
        _answer([*self._group, *self._sliced], closed)
        self._answered(self._outstanding)

    def _collect(self) -> bool:
        """Move all queued calls to the group or the sliced work. Wait for a call if there is no sliced work."""
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
            self._commit(group, sync=any(call.sync for call in group))
        _answer(group, None)
        self._answered(len(group))

    def _commit(self, group: list[WriteCall], *, sync: bool) -> float | None:
        """Write the group, with one sync if ``sync``, and set each call's answer or error. Raises nothing.

        Returns the seconds of the sync. None: there was none, or it took slices along.
        """
        try:
            self._recover()
            batch = RowBatch(self._rocks)
            for call in group:
                _stage(call, batch)
            if batch:
                self._rocks.write(batch)
            # Invariant: the result of a call with ``sync`` depends only on data on disk. A head that the call read
            # (or that refused it) may come from an earlier group that was not synced.
            seconds = None
            if sync and self._rocks.unsynced:
                seconds = self._sync()
        except Exception as error:
            self._stale = True
            for call in group:
                call.error = error
            return None
        for call in group:
            if call.error is None and isinstance(call.future, Notice):
                call.future.written()
        return seconds

    def _answered(self, count: int) -> None:
        """So many calls are answered. After the last one, let the event loop commit what has waited for them."""
        with self._closing:
            self._outstanding -= count
        waiting = None if self._outstanding else next(iter(self._here), None)
        if waiting is not None and waiting.future is not None:
            with suppress(RuntimeError):  # the loop has ended, so none of its tasks waits for a result
                waiting.future.get_loop().call_soon_threadsafe(self._step)

    def _sync(self) -> float | None:
        """Sync all writes. Returns the seconds. None: slices were synced, too, so they say nothing of a small write."""
        began, slices = time.perf_counter(), self._unsynced_slices
        self._rocks.sync()
        self._unsynced_slices = 0
        return None if slices else time.perf_counter() - began

    def _advance_slice(self) -> float:
        """Write the next slice. Returns the seconds for which the thread rests, so that the event loop can write."""
        call = self._sliced[0]
        try:
            with self._writing:
                began = time.perf_counter()
                self._recover()
                batch = RowBatch(self._rocks)
                assert call.work is not None
                done = call.work.advance(batch)
                if batch:
                    self._unsynced_slices += batch.size
                    self._rocks.write(batch)
                if done and call.sync:
                    self._sync()
        except StoreUnavailableError as error:
            self._stale = True
            self._end_sliced(error)
        except Exception as error:
            self._end_sliced(error)
        else:
            if not done:
                return rest_after(time.perf_counter() - began)
            self._end_sliced(None)
        return 0.0

    def _end_sliced(self, error: Exception | None) -> None:
        _answer([self._sliced.popleft()], error)

    def _recover(self) -> None:
        """After a failure, reopen the database and reload every cache from what is stored."""
        if self._stale:
            self._rocks.recover()
            for reload in self._reloads:
                reload()
            self._stale = False


def rest_after(took: float) -> float:
    """The seconds between a slice that took so long and the next one."""
    return min(max(took, _SHORTEST_REST_SECONDS), _LONGEST_REST_SECONDS)


def _nothing(batch: RowBatch) -> None:
    """The stage of a call that only syncs."""


def _stage(call: WriteCall, batch: RowBatch) -> None:
    """Stage one call of a group."""
    assert call.stage is not None
    try:
        call.answer = call.stage(batch)
    except Exception as error:
        call.error = error


def _answer(calls: list[WriteCall], error: Exception | None) -> None:
    """Resolve the calls, on each caller's event loop. ``error`` replaces the results of all calls."""
    loops: dict[asyncio.AbstractEventLoop, list[WriteCall]] = {}
    for call in calls:
        if error is not None:
            call.error = error
        if call.future is not None:
            loops.setdefault(call.future.get_loop(), []).append(call)
    for loop, waiting in loops.items():
        with suppress(RuntimeError):  # the loop has ended, so none of its tasks waits for a result
            loop.call_soon_threadsafe(resolve, waiting)


def resolve(calls: list[WriteCall]) -> None:
    """Give each call its outcome.

    Invariant (G8): every call of a group gets its outcome. Who could break it: a caller of the same group whose notice
    raises. Then only that caller has a failure.
    """
    for call in calls:
        future = call.future
        if future is None or future.done():
            continue
        try:
            if call.error is None:
                future.set_result(call.answer)
            else:
                future.set_exception(_own_copy(call.error) if len(calls) > 1 else call.error)
        except Exception as error:
            context = {"message": "a caller of the store failed when it got its outcome", "exception": error}
            future.get_loop().call_exception_handler(context)


def _own_copy(error: BaseException) -> BaseException:
    """Return a copy of a shared failure: each caller gets its own exception with its own traceback."""
    return StoreUnavailableError(*error.args) if isinstance(error, StoreUnavailableError) else error
