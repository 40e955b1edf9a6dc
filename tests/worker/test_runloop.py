"""The run queue keeps the order, gives others their turn, and survives a call that raises."""

from __future__ import annotations

import asyncio
import time

import pytest

from millwheel.worker.process.events import RunQueue


async def test_calls_run_in_posting_order_and_never_inside_each_other() -> None:
    queue = RunQueue(asyncio.get_running_loop())
    seen: list[int] = []

    def call(number: int) -> None:
        if number < 3:
            queue.post(call, number + 10)
        seen.append(number)

    for number in range(4):
        queue.post(call, number)
    assert seen == [], "posting returns before anything runs"
    await asyncio.sleep(0.01)
    assert seen == [0, 1, 2, 3, 10, 11, 12]


async def test_a_raising_call_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    queue = RunQueue(asyncio.get_running_loop())
    seen: list[int] = []

    def call(number: int) -> None:
        if number == 1:
            raise RuntimeError("odd one out")
        seen.append(number)

    for number in range(3):
        queue.post(call, number)
    await asyncio.sleep(0.01)
    queue.post(call, 7)
    await asyncio.sleep(0.01)
    assert seen == [0, 2, 7]
    assert "odd one out" in caplog.text


async def test_a_flood_leaves_timers_their_turn() -> None:
    queue = RunQueue(asyncio.get_running_loop())
    turns: list[int] = []
    left = 200

    def work(number: int) -> None:
        nonlocal left
        left -= 1
        time.sleep(0.001)

    for number in range(200):
        queue.post(work, number)
    while left:
        turns.append(left)
        await asyncio.sleep(0)
    assert len(turns) > 10


@pytest.mark.guarantee("G8")
async def test_a_cancellation_raised_by_a_call_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: the queue stayed scheduled without running. The process handled no event any more."""
    queue = RunQueue(asyncio.get_running_loop())
    seen: list[int] = []

    def call(number: int) -> None:
        if number == 1:
            raise asyncio.CancelledError
        seen.append(number)

    for number in range(3):
        queue.post(call, number)
    await asyncio.sleep(0.01)
    queue.post(call, 7)
    await asyncio.sleep(0.01)
    assert seen == [0, 2, 7]
    assert "run queue" in caplog.text
