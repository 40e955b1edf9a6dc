"""How a command that started processes ends: stopped from outside, or because something went wrong."""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Coroutine
from typing import Any

__all__ = ["causes", "stoppable"]


async def stoppable(work: Coroutine[Any, Any, int]) -> int:
    """SIGTERM stops as Ctrl-C does: everything that was started is stopped."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def causes(error: BaseException, expected: tuple[type[BaseException], ...], otherwise: str) -> list[str]:
    """What went wrong, a line for each; what nobody thought of, not ``expected``, comes with its traceback.

    ``otherwise``: what is said of an error without words.
    """
    if isinstance(error, BaseExceptionGroup):
        return [cause for one in error.exceptions for cause in causes(one, expected, otherwise)]
    if not isinstance(error, expected):
        traceback.print_exception(error)
    return [str(error) or otherwise]
