"""Several streams of messages read as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, Generic, TypeVar

__all__ = ["merged"]

Item = TypeVar("Item")


class _End:
    """What a source puts after its last item."""


_END: Final = _End()


async def merged(sources: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """What ``sources`` yield, as it comes; each keeps its own order, and none is read ahead by more than one item.

    The first that fails ends all of them, and its exception is raised. Closing it closes the sources.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    merging = _Merging[Item]()
    tasks = [asyncio.create_task(merging.pass_on(source)) for source in sources]
    try:
        running = len(tasks)
        while running:
            news = await merging.news.get()
            if not isinstance(news, _End):
                yield news
                continue
            running -= 1
            if merging.failure is not None:
                raise merging.failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Merging(Generic[Item]):
    """The one place that all sources put their items into."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[Item | _End] = asyncio.Queue(1)
        self.failure: BaseException | None = None
        """What the first source that failed did."""

    async def pass_on(self, source: AsyncGenerator[Item, None]) -> None:
        try:
            async with aclosing(source):
                async for item in source:
                    await self.news.put(item)
        except BaseException as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # gRPC shows the end of a call as a cancellation, too, which it is not: it is told like any other failure.
            self.failure = self.failure or error
        await self.news.put(_END)
