"""What all tests of a contract use: an error that says what to do, calls with a limit, and a count of what is open."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from unittest import SkipTest

from millwheel.connectors.handles import CALL_SECONDS
from millwheel.model.time import Timestamp

__all__ = [
    "PATIENCE_SECONDS",
    "POLL_SECONDS",
    "BrokenContractError",
    "call",
    "cancel_after",
    "close_quietly",
    "deadline",
    "error_of",
    "not_offered",
    "open_things",
    "require",
    "run",
    "start_of_clock",
    "until",
]

R = TypeVar("R")

PATIENCE_SECONDS: Final = 60.0
"""How long a test waits for records of the other system, in seconds of real time."""
POLL_SECONDS: Final = 0.01
"""How long a test waits before it asks the other system again, in seconds of real time."""
_HOUR: Final = 3_600_000_000


class BrokenContractError(AssertionError):
    """A connector does not do what the contract demands. The message has the rule."""


class _Closes(Protocol):
    async def close(self) -> None: ...


def require(holds: object, rule: str) -> None:
    """Raise BrokenContractError with the rule, unless it holds."""
    if not holds:
        raise BrokenContractError(rule)


def not_offered(what: str) -> SkipTest:
    """The exception by which pytest and unittest skip a test: the subclass does not define what it needs."""
    return SkipTest(f"the test needs {what}")


def run(test: Coroutine[Any, Any, R]) -> R:
    """Run a test on an event loop of its own."""
    return asyncio.run(test)


def start_of_clock() -> Timestamp:
    """The first value of a test's virtual clock: later than every record, also where the other system gives times."""
    return Timestamp(time.time_ns() // 1_000 + _HOUR)


async def call(awaited: Awaitable[R], what: str) -> R:
    """The result of a call of the connector, which has the time limit that it has in a worker."""
    try:
        async with asyncio.timeout(CALL_SECONDS) as limit:
            return await awaited
    except TimeoutError:
        require(not limit.expired(), f"{what} has not returned within {CALL_SECONDS:g} s")
        raise


async def error_of(awaited: Awaitable[object], what: str) -> Exception | None:
    """The error of a call that may fail; None if it does not."""
    try:
        await call(awaited, what)
    except BrokenContractError:
        raise
    except Exception as error:
        return error
    return None


async def cancel_after(ticks: int, awaited: Coroutine[Any, Any, R]) -> R | None:
    """Cancel a call after some rounds of the event loop. Returns its result if it has ended before."""
    task = asyncio.ensure_future(awaited)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=CALL_SECONDS)
    require(done, f"a call goes on {CALL_SECONDS:g} s after it was cancelled")
    return None if task.cancelled() or task.exception() else task.result()


async def close_quietly(handle: _Closes) -> None:
    """Close a reader or a writer. As in a worker, an error changes nothing, but the call must end."""
    with suppress(Exception):
        await call(handle.close(), "close()")


def deadline() -> float:
    """When a test gives up, by the monotonic clock in seconds, if it begins to wait now."""
    return time.monotonic() + PATIENCE_SECONDS


async def until(holds: Callable[[], Awaitable[bool]], rule: Callable[[], str]) -> None:
    """Call ``holds`` until it is true. BrokenContractError with the rule if that takes too long."""
    end = deadline()
    while not await holds():
        require(time.monotonic() < end, rule())
        await asyncio.sleep(POLL_SECONDS)


def open_things() -> int:
    """How many files, sockets and threads this process has. Without /proc: how many threads."""
    gc.collect()  # what is out of reach is closed now, and not in the middle of a count
    descriptors = Path("/proc/self/fd")
    return threading.active_count() + (len(list(descriptors.iterdir())) if descriptors.is_dir() else 0)
