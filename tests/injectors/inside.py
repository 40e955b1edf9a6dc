"""Access to an injector's private parts, in one place, for tests of its timing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from millwheel.client.injector import Injector
from millwheel.client.injector.session import InjectorSession


def session_of(injector: Injector) -> InjectorSession:
    """The driver of its core."""
    return injector._session  # noqa: SLF001  # the public class is a facade


def admission_of(injector: Injector) -> Any:
    """Its intake of records."""
    return injector._admission  # noqa: SLF001  # the public class is a facade


def routing_task_of(injector: Injector) -> asyncio.Task[None]:
    """The follower of its routing."""
    task = session_of(injector).follower.task
    assert task is not None
    return task


async def explained(injector: Injector) -> str:
    """The reason why records have no ACK, as its next check reports it."""
    return await injector._monitor.explain()  # noqa: SLF001  # see above: in one place


def ask_instead(injector: Injector, ask: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Replace the function that asks a worker for keys by ``ask``. Returns the former function."""
    keying: Any = admission_of(injector).keying
    before: Callable[..., Awaitable[Any]] = keying.ask
    keying.ask = ask
    return before
