"""A cancelled task ends, also if its call ends in the same moment."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from millwheel.rpc.errors import calling
from millwheel.rpc.failures import RequestError
from tests.patience import patience


def failure() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "gone", None)


async def call_until_cancelled(attempts: list[int]) -> None:
    """What every client loop does: try again after a failure. The call's end hides the cancellation."""
    while True:
        attempts.append(1)
        try:
            async with calling("here:1"):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    raise failure() from None
        except RequestError:
            await asyncio.sleep(0)


async def test_a_cancellation_survives_a_call_failing_at_that_moment() -> None:
    attempts: list[int] = []
    task = asyncio.create_task(call_until_cancelled(attempts))
    await asyncio.sleep(0.01)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=patience(2))
    task.cancel()
    assert done == {task}, f"the cancelled task went on, attempt {len(attempts)}"
    assert task.cancelled()


async def test_a_failure_without_a_cancellation_is_reported() -> None:
    with pytest.raises(RequestError, match="cannot reach"):
        async with calling("here:1"):
            raise failure()
