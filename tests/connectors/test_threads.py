"""Calls of a library that blocks: one after the other, on one thread, and without a wait for a stuck one."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from millwheel.connectors.threads import CallThread


async def test_all_calls_run_on_one_thread() -> None:
    calls = CallThread("test-calls")
    idents = {await calls.call(threading.get_ident) for _ in range(3)}
    await calls.end(lambda: idents.add(threading.get_ident()))
    assert len(idents - {threading.get_ident()}) == len(idents) == 1


async def test_the_caller_gets_what_a_call_raises() -> None:
    calls = CallThread("test-calls")

    def fails() -> None:
        raise ConnectionError("away")

    with pytest.raises(ConnectionError, match="away"):
        await calls.call(fails)
    await calls.end(lambda: None)


async def test_the_last_call_runs_behind_a_stuck_one() -> None:
    stuck, ended, calls = threading.Event(), threading.Event(), CallThread("test-calls")
    call = asyncio.create_task(calls.call(stuck.wait))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await calls.end(ended.set)
    assert not ended.is_set()
    stuck.set()
    assert await asyncio.to_thread(ended.wait, 60)


async def test_the_end_may_wait_for_a_cancelled_call() -> None:
    """A connection that is opened after the end would take the session of the next reader."""
    begun, may_end, ended, calls = threading.Event(), threading.Event(), threading.Event(), CallThread("test-calls")

    def opens() -> None:
        begun.set()
        may_end.wait(60)

    call = asyncio.create_task(calls.call(opens))
    assert await asyncio.to_thread(begun.wait, 60)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    asyncio.get_running_loop().call_later(0.01, may_end.set)
    await calls.end(ended.set, unfinished_seconds=60)
    assert ended.is_set()


async def test_a_thread_that_was_not_ended_ends_with_its_owner() -> None:
    calls = CallThread("test-calls")
    thread = await calls.call(threading.current_thread)
    del calls
    gc.collect()
    await asyncio.to_thread(thread.join, 60)
    assert not thread.is_alive()
