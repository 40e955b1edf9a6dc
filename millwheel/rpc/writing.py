"""Writes to a streaming call while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc

from millwheel.rpc.cancelling import cancellations, raise_if_cancelled

__all__ = ["writing"]


@asynccontextmanager
async def writing(call: Any, write: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run ``write``, which writes to ``call``, while the block reads ``call``. Both end with the call.

    gRPC's own request iterator takes one more message after a call has ended, and loses it. So this function writes in
    a separate task. A writer that fails ends the call, and its error is raised here. Otherwise the reader would wait
    for answers to messages that are never sent.
    """
    writer = asyncio.create_task(write)
    writer.add_done_callback(lambda _: call.cancel())
    before = cancellations()
    try:
        yield
        raise_if_cancelled(before)  # a call that ends at the same moment hides the cancellation
        _raise_failure(writer)
    except asyncio.CancelledError:
        raise_if_cancelled(before)
        # The task was not cancelled. The call was, and gRPC raises that in its reader as a cancellation.
        _raise_failure(writer)
        raise
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        call.cancel()


def _raise_failure(writer: asyncio.Task[None]) -> None:
    """Raise the writer's own error. Errors that the end of the call causes are dropped: the reader has the reason."""
    error = writer.exception() if writer.done() and not writer.cancelled() else None
    if error is not None and not isinstance(error, (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError)):
        raise error from None
