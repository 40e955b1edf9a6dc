"""Simulated processes: which process each step belongs to, and what happens to steps when it is paused or killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

__all__ = ["PROCESS", "Clock", "Process", "ProcessStep"]

PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)
"""The process whose step is running; None: the world itself."""


class ProcessStep:
    """A call that a process makes at once or at a set time: what asyncio calls a handle.

    Half of a run's time goes into creating and running steps, so a step does only what a run needs.
    """

    __slots__ = ("arguments", "call", "context", "is_cancelled", "process", "when")

    def __init__(self, call: Callable[..., object], arguments: tuple[Any, ...], context: Context | None) -> None:
        self.call = call
        self.arguments = arguments
        self.context = copy_context() if context is None else context
        self.process: Process | None = self.context.get(PROCESS)
        self.is_cancelled = False
        self.when = 0.0
        """For a timer: its time, by the steady clock of its process."""

    def cancel(self) -> None:
        """Cancel the step: the loop skips it when its time comes."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether the step is cancelled."""
        return self.is_cancelled

    def __repr__(self) -> str:
        return f"<step {getattr(self.call, '__qualname__', type(self.call).__name__)}>"


class Clock:
    """A process's wall clock.

    It is ``offset`` seconds from the true time, and drifts by ``drift`` seconds per second.
    """

    __slots__ = ("_since", "drift", "offset")

    def __init__(self, offset: float = 0.0, drift: float = 0.0) -> None:
        self.offset = offset
        self.drift = drift
        self._since = 0.0

    def wall(self, true: float) -> float:
        """The wall time that the clock shows at ``true`` seconds."""
        return true + self.offset + (true - self._since) * self.drift


class Process:
    """One incarnation of one process. ``name`` is also the name of its host, which runs no other process."""

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
        self.held: list[ProcessStep] = []
        """The steps that became due while the process was paused, in order."""
        self.asleep_since: float | None = None
        """The virtual time at which its machine was suspended; None: it is not suspended."""
        self.lag = 0.0
        """Total seconds for which its machine was suspended. CLOCK_MONOTONIC does not count them."""
        self.frozen: list[ProcessStep] = []
        """Timers that would be due if the steady clock had not stopped."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Of a dead process: the tasks that never continue. The references prevent their finalization."""
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"{self.name}.{self.life}"

    def spawn(self, work: Coroutine[Any, Any, Any], name: str | None = None) -> asyncio.Task[Any]:
        """Start a task of the process."""
        return self.loop.create_task(work, name=name, context=self.context.copy())

    def enter(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Run a call that reaches the process from outside: now, or after a pause; never if the process is dead."""
        if not self.alive:
            return
        if self.paused:
            self.held.append(ProcessStep(call, arguments, self.context.copy()))
        else:
            self.context.copy().run(call, *arguments)

    def later(self, delay: float, call: Callable[..., Any], *arguments: Any) -> asyncio.TimerHandle:
        """Set a timer of the process."""
        return self.loop.call_later(delay, call, *arguments, context=self.context.copy())
