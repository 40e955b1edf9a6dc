"""Several streams read as one: each in order, the first that fails ends all, and none is left open."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from millwheel.rpc.merging import merged


class Source:
    def __init__(self, name: str, count: int, failure: BaseException | None = None, *, stays: bool = False) -> None:
        self.name, self.count, self.failure, self.stays = name, count, failure, stays
        self.made = 0
        self.closed = False

    async def read(self) -> AsyncGenerator[tuple[str, int], None]:
        try:
            for number in range(self.count):
                self.made += 1
                yield self.name, number
                await asyncio.sleep(0)
            if self.failure is not None:
                raise self.failure
            if self.stays:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def read(*sources: Source) -> list[tuple[str, int]]:
    async with aclosing(merged([source.read() for source in sources])) as items:
        return [item async for item in items]


async def test_each_stream_keeps_its_order_and_the_last_ends_the_merge() -> None:
    found = await read(Source("a", 100), Source("b", 3), Source("c", 0))
    assert [item for item in found if item[0] == "a"] == [("a", number) for number in range(100)]
    assert [item for item in found if item[0] == "b"] == [("b", number) for number in range(3)]
    assert len(found) == 103
    assert await read(Source("a", 2)) == [("a", 0), ("a", 1)]


@pytest.mark.parametrize("failure", [ValueError("broken"), asyncio.CancelledError("hung up")])
async def test_the_first_that_fails_ends_all(failure: BaseException) -> None:
    staying, failing = Source("a", 5, stays=True), Source("b", 1, failure)
    with pytest.raises(type(failure), match=str(failure)):
        await read(staying, failing)
    assert staying.closed
    assert failing.closed


async def test_closing_closes_sources_that_were_not_read_far_ahead() -> None:
    sources = Source("a", 1_000), Source("b", 1_000)
    async with aclosing(merged([source.read() for source in sources])) as items:
        seen = [await anext(items) for _ in range(10)]
        assert len(seen) == 10
    assert all(source.closed for source in sources)
    assert sum(source.made for source in sources) <= 10 + 1 + len(sources)


async def test_a_busy_stream_delays_no_other_answer() -> None:
    busy, failing = Source("a", 10**9), Source("b", 1, ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await read(busy, failing)
    assert busy.made < 1_000
    assert busy.closed


async def test_a_stream_that_ends_quietly_on_cancel_delays_no_other() -> None:
    async def quiet() -> AsyncGenerator[tuple[str, int], None]:
        with contextlib.suppress(asyncio.CancelledError):
            yield "a", 0
            await asyncio.Event().wait()

    async with aclosing(merged([quiet(), Source("b", 10**9).read()])) as items:
        for _ in range(5):
            await anext(items)
        await asyncio.sleep(0.01)


async def test_who_reads_may_be_cancelled() -> None:
    staying = Source("a", 1, stays=True), Source("b", 1, stays=True)
    reader = asyncio.create_task(read(*staying))
    await asyncio.sleep(0.01)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert all(source.closed for source in staying)
