"""How a command that started processes ends: by a signal, or by an error."""

from __future__ import annotations

import asyncio
import signal
import traceback
from collections.abc import Coroutine
from typing import Any

__all__ = ["causes", "stoppable"]


async def stoppable(work: Coroutine[Any, Any, int]) -> int:
    """Make SIGTERM cancel ``work``, as Ctrl-C does. Then everything that was started is stopped."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def causes(error: BaseException, expected: tuple[type[BaseException], ...], otherwise: str) -> list[str]:
    """The errors, one line for each. An error that is not ``expected`` is printed with its traceback.

    ``otherwise``: the text for an error without a message.
    """
    if isinstance(error, BaseExceptionGroup):
        return [cause for one in error.exceptions for cause in causes(one, expected, otherwise)]
    if not isinstance(error, expected):
        traceback.print_exception(error)
    return [str(error) or otherwise]
