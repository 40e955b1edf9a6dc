"""A call that is written to while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

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
    except asyncio.CancelledError:
        # The call's, which whoever reads is shown as one of its own: unless that was cancelled, too.
        task = asyncio.current_task()
        if task is None or task.cancelling() or not writer.done() or writer.cancelled():
            raise
        if (error := writer.exception()) is None:
            raise
        raise error from None
    finally:
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        call.cancel()
