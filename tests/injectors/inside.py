"""What an injector keeps to itself, in one place, for tests of when it looks again, waits and asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from millwheel.client.injector import Injector
from millwheel.client.injector.session import InjectorSession


def session_of(injector: Injector) -> InjectorSession:
    """What drives its core."""
    return injector._session  # noqa: SLF001  # the public class is a facade


def admission_of(injector: Injector) -> Any:
    """What takes records in."""
    return injector._admission  # noqa: SLF001  # the public class is a facade


def routing_task_of(injector: Injector) -> asyncio.Task[None]:
    """What follows the routing."""
    task = session_of(injector).follower._task  # noqa: SLF001  # it is ended, as by an error
    assert task is not None
    return task


async def explained(injector: Injector) -> str:
    """Why records are not ACKed, as it says when it looks next."""
    return await injector._monitor.explain()  # noqa: SLF001  # see above: in one place


def ask_instead(injector: Injector, ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Have ``ask`` ask a worker for keys from now on; returns what did so before."""
    keying: Any = admission_of(injector).keying
    before: Callable[..., Awaitable[Any]] = keying._ask  # noqa: SLF001  # a worker that hangs, or answers late
    keying._ask = ask  # noqa: SLF001  # see above: in one place
    return before
