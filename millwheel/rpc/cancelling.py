"""Distinguishes the cancellation of a task from the end of its call, which gRPC shows as a cancellation too."""

from __future__ import annotations

import asyncio

__all__ = ["cancellations", "raise_if_cancelled"]


def cancellations() -> int:
    """How often this task was cancelled. gRPC also shows the end of a call as a cancellation, which is not counted."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def raise_if_cancelled(before: int = 0) -> None:
    """Raise CancelledError if this task was cancelled.

    If a call fails at the moment of the cancellation, only its failure is raised, and the task would continue.

    Args:
        before: :func:`cancellations` at the begin of the call. A task that was cancelled earlier may still make calls,
            for example to clean up.
    """
    if cancellations() > before:
        raise asyncio.CancelledError
