"""Calls that block on a disk or a network, on threads that readers and writers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from millwheel.connectors.threads import CallThread

__all__ = ["on_thread"]

T = TypeVar("T")

_MAX_IDLE: Final = 16
_idle: list[CallThread] = []
"""Threads without a call. A thread for each reader would be thousands."""


async def on_thread(function: Callable[[], T]) -> T:
    """Run a function that blocks.

    If the caller is cancelled, the function may be stuck, on a network disk for example. Then its thread gets no other
    call, and ends behind this one.
    """
    try:
        thread = _idle.pop()
    except IndexError:
        thread = CallThread("millwheel-files")
    try:
        result: T = await thread.call(function)
    except asyncio.CancelledError:
        raise
    except BaseException:
        _keep(thread)
        raise
    _keep(thread)
    return result


def _keep(thread: CallThread) -> None:
    if len(_idle) < _MAX_IDLE:
        _idle.append(thread)
