"""A call that is written to while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc

from millwheel.rpc.errors import heed_cancellation

__all__ = ["writing"]


@asynccontextmanager
async def writing(call: Any, write: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Around the reading of ``call``: ``write``, which writes to it, runs beside, and both end together with the call.

    gRPC itself goes on with a request iterator after a call has ended, by one message, which is lost. A writer that
    fails ends the call, or nothing would be sent any more while its reader waits: its error leaves from here.
    """
    writer = asyncio.create_task(write)
    writer.add_done_callback(lambda _: call.cancel())
    try:
        yield
        heed_cancellation()  # a call that ends in the same moment hides it
        _heed(writer)
    except asyncio.CancelledError:
        heed_cancellation()
        # It is the call's, which whoever reads is shown as a cancellation of its own.
        _heed(writer)
        raise
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        call.cancel()


def _heed(writer: asyncio.Task[None]) -> None:
    """Raise what a writer failed with by itself: not because the call had ended, of which its reader knows more."""
    error = writer.exception() if writer.done() and not writer.cancelled() else None
    if error is not None and not isinstance(error, (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError)):
        raise error from None
