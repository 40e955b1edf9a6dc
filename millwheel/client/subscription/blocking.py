"""A subscription for programs without an event loop: it runs in a background thread."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from millwheel.client.background import BackgroundLoop
from millwheel.client.subscription.reading import Batch
from millwheel.client.subscription.subscriber import Subscription

__all__ = ["BlockingSubscription"]


class BlockingSubscription:
    """A :class:`Subscription` for programs without an event loop. Use it with ``with``, and iterate over it.

    The arguments are those of :class:`Subscription`. The subscription runs in a background thread.
    """

    def __init__(self, stream: str, **options: Any) -> None:
        self._loop = BackgroundLoop(f"millwheel-subscription-{stream}")
        self._inner = self._loop.enter(lambda: Subscription(stream, **options))

    def __enter__(self) -> BlockingSubscription:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> BlockingSubscription:
        return self

    def __next__(self) -> Batch:
        batch = self._loop.run(_next_or_none(self._inner))
        if batch is None:
            raise StopIteration
        return batch

    @property
    def watermark(self) -> int:
        """The largest watermark of a batch received so far, in microseconds."""
        return self._inner.watermark

    def ack(self, below_offset: int) -> None:
        """ACK every record below ``below_offset``. See :meth:`Subscription.ack`."""
        self._loop.run(self._inner.ack(below_offset))

    def flush(self) -> None:
        """Wait until the last ACK is on disk."""
        self._loop.run(self._inner.flush())

    def close(self) -> None:
        """End the subscription and its thread."""
        self._loop.leave(self._inner.close)


async def _next_or_none(subscription: Subscription) -> Batch | None:
    """The next batch, or None at the end: a task cannot raise StopAsyncIteration."""
    return await anext(subscription, None)
