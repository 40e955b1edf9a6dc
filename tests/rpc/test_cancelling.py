"""A cancelled task ends, also if its call ends in the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import grpc
import pytest

from millwheel.client.watermark_streams import connected
from millwheel.rpc.errors import calling
from millwheel.rpc.failures import RequestError
from tests.patience import patience


def failure() -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, nothing, nothing, "gone", None)


async def call_until_cancelled(attempts: list[int]) -> None:
    """Try again after a failure, as client loops do. The call's end hides the cancellation."""
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


@pytest.mark.parametrize("context", [calling, connected])
async def test_a_clean_up_after_a_cancellation_gets_its_calls_failures(
    context: Callable[[str], AbstractAsyncContextManager[None]],
) -> None:
    async def clean_up_when_cancelled() -> RequestError:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with pytest.raises(RequestError, match="cannot reach") as failed:
                async with context("here:1"):
                    raise failure() from None
        return failed.value

    task = asyncio.create_task(clean_up_when_cancelled())
    await asyncio.sleep(0.01)
    task.cancel()
    assert "here:1" in (await task).message


async def test_a_cancellation_during_the_clean_up_ends_it() -> None:
    async def clean_up_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await call_until_cancelled([])

    task = asyncio.create_task(clean_up_when_cancelled())
    for _ in range(2):
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, patience(2))
