"""A long wait is logged periodically. A short one is not."""

from __future__ import annotations

import asyncio

from millwheel.rpc.waiting import wait_notices


async def test_a_long_wait_is_announced_again_and_again() -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    with wait_notices(lambda seconds: f"waiting {seconds >= 0}", said.put_nowait, first=0.001, again=0.001):
        assert [await said.get() for _ in range(3)] == ["waiting True"] * 3
    assert said.empty()


async def test_a_wait_that_has_ended_is_not_announced() -> None:
    said: list[str] = []
    with wait_notices(str, said.append, first=0.0, again=0.0):
        pass
    for _ in range(3):
        await asyncio.sleep(0)
    assert said == []
