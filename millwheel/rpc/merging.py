"""Reads several asynchronous streams of messages as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Generic, TypeVar

__all__ = ["merged"]

Item = TypeVar("Item")


async def merged(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Yield the items of all ``sources`` as they arrive. Each source keeps its order, with one item read ahead at most.

    The first source that fails ends all of them, and its exception is raised. Closing this generator closes the
    sources.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    came: asyncio.Queue[_News[Item] | _End] = (
        asyncio.Queue()
    )  # at most one item of each source, in the order of arrival
    tasks = [asyncio.create_task(_pass_on(source, came)) for source in sources]
    try:
        running = len(tasks)
        while running:
            news = await came.get()
            if isinstance(news, _News):
                news.taken.set()
                yield news.item
                continue
            running -= 1
            if news.failure is not None:
                raise news.failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _News(Generic[Item]):
    """A source's newest item. ``taken`` is set when the source may read its next item."""

    __slots__ = ("item", "taken")

    def __init__(self, item: Item, taken: asyncio.Event) -> None:
        self.item = item
        self.taken = taken


class _End:
    """A source has ended or failed."""

    __slots__ = ("failure",)

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure


async def _pass_on(source: AsyncGenerator[Item, None], came: asyncio.Queue[_News[Item] | _End]) -> None:
    taken = asyncio.Event()
    failure: BaseException | None = None
    try:
        async with aclosing(source):
            async for item in source:
                taken.clear()
                came.put_nowait(_News(item, taken))
                await taken.wait()
    except BaseException as error:
        failure = error  # including a cancellation: gRPC raises the end of a call as one
    came.put_nowait(_End(failure))
