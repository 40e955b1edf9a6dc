"""Calls on threads: some of them never return."""

from __future__ import annotations

import asyncio
from threading import Event, current_thread

import pytest

from millwheel.connectors.files.calls import on_thread
from tests.patience import patience


async def test_a_thread_whose_call_is_stuck_gets_no_other() -> None:
    """A network disk that hangs takes its own calls away, and no others."""
    began, go_on = Event(), Event()

    def stuck() -> str:
        began.set()
        go_on.wait()
        return current_thread().name

    calls = [asyncio.create_task(on_thread(stuck)) for _ in range(20)]
    try:
        assert await asyncio.to_thread(began.wait, patience(10))
        for call in calls:
            call.cancel()
        assert {type(one) for one in await asyncio.gather(*calls, return_exceptions=True)} == {asyncio.CancelledError}
        async with asyncio.timeout(patience(10)):
            assert [await on_thread(lambda number=number: number) for number in range(5)] == list(range(5))  # type: ignore[misc]
    finally:
        go_on.set()


async def test_a_call_that_fails_leaves_its_thread_to_others() -> None:
    async def thread() -> int | None:
        return await on_thread(lambda: current_thread().ident)

    first = await thread()
    with pytest.raises(ZeroDivisionError):
        await on_thread(lambda: 1 // 0)
    assert await thread() == first
