"""Calls that wait for a sync run in their order, and each of them runs."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.store.held_calls import HeldCalls


async def test_a_call_from_a_call_runs_after_the_waiting_ones() -> None:
    held, ran = HeldCalls(), list[str]()

    def first() -> None:
        ran.append("first")
        held.run(lambda: ran.append("added"))

    held.begin(0.0)
    held.run(first)
    held.run(lambda: ran.append("second"))
    held.release()
    assert ran == ["first", "second", "added"]


async def test_calls_wait_for_the_sync_of_a_new_outcome() -> None:
    held, ran = HeldCalls(), list[str]()
    held.begin(0.0)
    held.run(lambda: held.begin(1.0))
    held.run(lambda: ran.append("second"))
    held.release()
    assert (ran, held.waits) == ([], True)
    held.release()
    assert (ran, held.waits) == (["second"], False)


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()], ids=["error", "cancelled"])
async def test_a_held_call_that_raises_takes_no_other_along(error: BaseException) -> None:
    held, ran, seen = HeldCalls(), list[str](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context["exception"]))

    def raises() -> None:
        raise error

    held.begin(0.0)
    held.run(raises)
    held.run(lambda: ran.append("second"))
    held.release()
    assert (ran, seen) == (["second"], [error])
