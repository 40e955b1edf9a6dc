"""A subscription for programs without an event loop: it runs in a background thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from millwheel.client.subscription.subscriber import Batch, Subscription

__all__ = ["BlockingSubscription"]

Result = TypeVar("Result")


class BlockingSubscription:
    """A :class:`Subscription` for programs without an event loop. Use it with ``with``, and iterate over it.

    The arguments are those of :class:`Subscription`. The subscription runs in a background thread.
    """

    def __init__(self, stream: str, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"millwheel-subscription-{stream}", daemon=True
        )
        self._thread.start()
        self._open = True
        try:
            self._inner = self._run(_entered(stream, options))
        except BaseException:
            self._stop()
            raise

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BlockingSubscription:
        return self

    def __next__(self) -> Batch:
        batch = self._run(_next_or_none(self._inner))
        if batch is None:
            raise StopIteration
        return batch

    @property
    def watermark(self) -> int:
        """The largest watermark of a batch received so far, in microseconds."""
        return self._inner.watermark

    def ack(self, below_offset: int) -> None:
        """ACK every record below ``below_offset``. See :meth:`Subscription.ack`."""
        self._run(self._inner.ack(below_offset))

    def flush(self) -> None:
        """Wait until the last ACK is on disk."""
        self._run(self._inner.flush())

    def close(self) -> None:
        """End the subscription and its thread."""
        if self._open:
            self._open = False
            try:
                self._run(self._inner.close())
            finally:
                self._stop()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _entered(stream: str, options: dict[str, Any]) -> Subscription:
    return await Subscription(stream, **options).__aenter__()


async def _next_or_none(subscription: Subscription) -> Batch | None:
    """The next batch, or None at the end: a task cannot raise StopAsyncIteration."""
    return await anext(subscription, None)
