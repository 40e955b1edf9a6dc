"""Simulated processes: whose every step is, and what becomes of it when the process is paused or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

__all__ = ["PROCESS", "Clock", "Process", "Step"]

PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)
"""Whose step is being taken; None: the world's own."""


class Step:
    """A call that a process is to make, at once or when its time comes: what asyncio calls a handle.

    Half of a run's time goes into making and taking these, so they do no more than a run needs.
    """

    __slots__ = ("_arguments", "_call", "_context", "is_cancelled", "process", "when")

    def __init__(self, call: Callable[..., object], arguments: tuple[Any, ...], context: Context | None) -> None:
        self._call = call
        self._arguments = arguments
        self._context = copy_context() if context is None else context
        self.process: Process | None = self._context.get(PROCESS)
        self.is_cancelled = False
        self.when = 0.0
        """Of a timer: its time, by the steady clock of its process."""

    def cancel(self) -> None:
        """It is passed over when its time comes."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it is."""
        return self.is_cancelled

    def take(self) -> None:
        """Make the call."""
        self._context.run(self._call, *self._arguments)

    def __repr__(self) -> str:
        return f"<step {getattr(self._call, '__qualname__', type(self._call).__name__)}>"


class Clock:
    """A process's wall clock: ``offset`` seconds from the true time, going wrong by ``drift`` seconds a second."""

    __slots__ = ("_since", "drift", "offset")

    def __init__(self, offset: float = 0.0, drift: float = 0.0) -> None:
        self.offset = offset
        self.drift = drift
        self._since = 0.0

    def wall(self, true: float) -> float:
        """What it shows at ``true`` seconds."""
        return true + self.offset + (true - self._since) * self.drift


class Process:
    """One life of one process. ``name`` is also its host, which it has for itself."""

    __slots__ = (
        "alive",
        "asleep_since",
        "clock",
        "context",
        "frozen",
        "held",
        "lag",
        "life",
        "loop",
        "name",
        "paused",
        "tasks",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, life: int, clock: Clock) -> None:
        self.loop = loop
        self.name = name
        self.life = life
        self.clock = clock
        self.alive = True
        self.paused = False
        self.held: list[Step] = []
        """What became due while it was paused, in order."""
        self.asleep_since: float | None = None
        """When its machine was suspended, if it is."""
        self.lag = 0.0
        """Seconds for which its machine was suspended so far. CLOCK_MONOTONIC does not count them."""
        self.frozen: list[Step] = []
        """Timers that would be due, if its steady clock went on."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Of a dead one: those that will never go on. They are kept, so that nothing of them is finalized."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"{self.name}.{self.life}"

    def spawn(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Have the process do something."""
        return self.loop.create_task(work, name=name, context=self.context.copy())

    def enter(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Something reaches the process from outside: now, or when it goes on; never if it is dead."""
        if not self.alive:
            return
        if self.paused:
            self.held.append(Step(call, arguments, self.context.copy()))
        else:
            self.context.copy().run(call, *arguments)

    def later(self, delay: float, call: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        """A timer of the process's own."""
        return self.loop.call_later(delay, call, *arguments, context=self.context.copy())
