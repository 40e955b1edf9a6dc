"""Several streams of messages read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

__all__ = ["merged"]

Item = TypeVar("Item")


async def merged(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """What ``sources`` yield, as it comes; each keeps its own order, and none is read ahead by more than one item.

    The first that fails ends all of them, and its exception is raised. Closing it closes the sources.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    news: asyncio.Queue[Item] = asyncio.Queue(1)
    tasks = [asyncio.create_task(_pass_on(source, news)) for source in sources]
    coming: asyncio.Future[Item] | None = None
    try:
        running = set(tasks)
        while running or not news.empty():
            coming = coming or asyncio.ensure_future(news.get())
            waits: set[asyncio.Future[Any]] = {coming, *running}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                item, coming = coming.result(), None
                yield item
            for task in [task for task in running if task.done()]:
                task.result()
                running.discard(task)
    finally:
        for task in tasks:
            task.cancel()
        if coming is not None:
            coming.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pass_on(source: AsyncGenerator[Item, None], news: asyncio.Queue[Item]) -> None:
    async with aclosing(source):
        async for item in source:
            await news.put(item)
