"""The store thread: which calls are committed by it, which ones on the event loop, and in which order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from millwheel.store import writer
from millwheel.store.contract import StoreUnavailableError
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.rocks import Rocks, RowBatch
from millwheel.store.writer import Notice, StoreThread, rest_after
from tests.patience import patience

LARGE = 1 << 20
"""The size of a call that is never committed in place."""


class PausedRocks(Rocks):
    """Syncs on the store thread set ``began``, and wait until ``resume`` is set."""

    def __init__(self, directory: DatabaseDirectory) -> None:
        super().__init__(directory)
        self.began, self.resume = threading.Event(), threading.Event()

    def sync(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.began.set()
            assert self.resume.wait(patience(20))
        super().sync()


class Opened:
    """A store thread, and what was written: the name of each call, and whether the event loop wrote it."""

    def __init__(self, directory: DatabaseDirectory) -> None:
        self.rocks = PausedRocks(directory)
        self.thread = StoreThread(self.rocks)
        self.written: list[tuple[str, bool]] = []

    def call(self, name: str, size: int = 0) -> asyncio.Future[str]:
        return asyncio.ensure_future(self.thread.call(self.stage(name), size=size))

    def stage(self, name: str) -> Callable[[RowBatch], str]:
        def stage(batch: RowBatch) -> str:
            batch.put(name.encode(), b"")
            self.written.append((name, threading.current_thread() is threading.main_thread()))
            return name

        return stage


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    directory = DatabaseDirectory(tmp_path / "db")
    opened = Opened(directory)
    yield opened
    opened.rocks.resume.set()
    await asyncio.to_thread(opened.thread.close)
    opened.rocks.close()
    directory.release()


async def large_call(opened: Opened) -> asyncio.Future[str]:
    """A call that the thread has staged, and cannot sync yet."""
    call = opened.call("large", LARGE)
    assert await asyncio.to_thread(opened.rocks.began.wait, patience(5))
    return call


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_small_call_waits_for_the_thread_and_is_in_place(opened: Opened) -> None:
    """A busy server handed over every commit after its first large one, and each waited for two threads."""
    large = await large_call(opened)
    small = [opened.call("first"), opened.call("second")]
    await turns()
    assert not any(call.done() for call in small)
    opened.rocks.resume.set()
    async with asyncio.timeout(patience(2)):
        assert await asyncio.gather(large, *small) == ["large", "first", "second"]
    assert opened.written == [("large", False), ("first", True), ("second", True)]


async def test_a_large_call_takes_those_that_wait_along(opened: Opened) -> None:
    calls = [await large_call(opened)]
    calls.append(opened.call("small"))
    await turns()
    calls.append(opened.call("larger", LARGE))
    await turns()
    opened.rocks.resume.set()
    async with asyncio.timeout(patience(2)):
        await asyncio.gather(*calls)
    assert opened.written == [("large", False), ("small", False), ("larger", False)]


async def test_calls_that_wait_are_answered_when_the_store_closes(opened: Opened) -> None:
    large = await large_call(opened)
    small = opened.call("small")
    await turns()
    closing = asyncio.create_task(asyncio.to_thread(opened.thread.close))
    await asyncio.sleep(0.01)
    opened.rocks.resume.set()
    await closing
    assert await large == "large"
    async with asyncio.timeout(patience(2)):
        with suppress(StoreUnavailableError):  # or it was committed before the store was closed
            await small


@pytest.mark.guarantee("G8", section="6.1.2")
@pytest.mark.parametrize("size", [0, LARGE])
async def test_a_caller_that_fails_takes_no_other_along(opened: Opened, size: int) -> None:
    opened.rocks.resume.set()
    loop, failures = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    ended: asyncio.Queue[BaseException | None] = asyncio.Queue()
    fault = RuntimeError("a fault of the caller")

    def fail(_: BaseException | None) -> None:
        raise fault

    for notify in (fail, ended.put_nowait):
        opened.thread.begin(Notice(loop, notify), opened.stage("one"), size=size)
    async with asyncio.timeout(patience(5)):
        assert await ended.get() is None
    assert failures == [fault]


class Slice:
    """Work of one slice, which ends when it may, or after some seconds."""

    def __init__(self, seconds: float) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self._seconds = seconds

    def advance(self, batch: RowBatch) -> bool:
        self.begun.set()
        self.may_end.wait(self._seconds)
        batch.put(b"row", b"")
        return True


async def flush_of(opened: Opened, work: Slice) -> asyncio.Future[None]:
    """A flush whose slice is being written."""
    opened.rocks.resume.set()
    flush = asyncio.ensure_future(opened.thread.call_sliced(work))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(work.begun.wait, patience(5))
    return flush


async def test_a_short_slice_takes_no_call_off_the_loop(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: while rows were flushed, each commit had a handover and a sync of its own."""
    monkeypatch.setattr(writer, "SLICE_WAIT_SECONDS", patience(20))
    flush = await flush_of(opened, Slice(0.05))
    async with asyncio.timeout(patience(30)):
        await asyncio.gather(opened.call("small"), flush)
    assert opened.written == [("small", True)]


async def test_the_loop_does_not_wait_for_a_long_slice(opened: Opened) -> None:
    work = Slice(patience(20))
    flush = await flush_of(opened, work)
    small = opened.call("small")
    await turns()
    work.may_end.set()
    async with asyncio.timeout(patience(30)):
        await asyncio.gather(small, flush)
    assert opened.written == [("small", False)]


def test_the_loop_has_half_of_the_time_of_a_flush() -> None:
    assert [rest_after(took) for took in (0.0, 0.0004, 0.5)] == [20e-6, 0.0004, 0.001]


class LargeSlice(Slice):
    def advance(self, batch: RowBatch) -> bool:
        batch.put(b"large", b"x" * writer.MAX_SLICES_HERE_BYTES)
        return super().advance(batch)


async def test_the_thread_syncs_what_large_slices_wrote(opened: Opened) -> None:
    """Regression: the loop did, and took the disk for a slow one, so that later commits went to the thread, too."""
    opened.rocks.resume.set()
    work = LargeSlice(0)
    opened.thread.call_later(work)
    assert await asyncio.to_thread(work.begun.wait, patience(5))
    async with asyncio.timeout(patience(30)):
        for name in ("first", "second"):
            await opened.call(name)
    assert opened.written == [("first", False), ("second", True)]
