"""An asyncio event loop in virtual time, whose steps belong to simulated processes.

When nothing is ready, time jumps to the next timer. So a run takes only as long as its steps take. The seed decides the
order of steps of different processes that are ready at the same moment. Steps of one process keep the order in which
they were scheduled, as in reality. Threads and sockets are errors: the seed must determine everything.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context
from random import Random
from typing import Any, NoReturn

from simulation.process import PROCESS, Process, ProcessStep

__all__ = ["SimulatedLoop", "StuckError"]


class StuckError(Exception):
    """Nothing is ready and no timer is set, but the work is not done."""


class _Future(asyncio.Future[Any]):
    """A future whose hash, and so its place in a set, does not depend on its memory address."""

    number: int
    """Set by the loop right after the construction. A constructor of its own would cost each future a fifth more."""

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    """A task whose hash does not depend on its memory address."""

    def __init__(
        self,
        number: int,
        work: Generator[Any, None, Any] | Coroutine[Any, Any, Any],
        loop: SimulatedLoop,
        name: str | None,
        context: Context | None,
    ) -> None:
        # Set before the base constructor, because registering a task hashes it.
        self.number = number
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(work, loop=loop, name=name or "task", context=context)

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop that the module describes. ``chance`` decides which process's steps run first."""

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._chance = chance
        self._now = 0.0
        self._queue: deque[ProcessStep] = deque()
        self._timers: list[tuple[float, int, ProcessStep]] = []
        self._serial = 0
        self._suspended = False
        """Whether a machine was ever suspended. Until then all steady clocks show the same time."""
        self.steps = 0
        """The number of steps run so far."""

    # What asyncio requires of a loop.

    get_debug = bool
    """Always False. Each future asks, so the answer does not cost a Python function."""

    def time(self) -> float:
        """Virtual seconds since the run began, without the seconds for which this step's machine was suspended."""
        return self._now if not self._suspended else self._now - _lag(PROCESS.get())

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self._now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> ProcessStep:  # type: ignore[override]
        """See :meth:`asyncio.AbstractEventLoop.call_soon`."""
        step = ProcessStep(callback, args, context)
        self._queue.append(step)
        return step

    # The simulation has no threads: calls that asyncio makes from a finalizer come from this thread, too.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> ProcessStep:
        """See :meth:`asyncio.AbstractEventLoop.call_at`. ``when`` is by the steady clock of the step's process."""
        step = ProcessStep(callback, args, context)
        step.when = when
        self._set(step)
        return step

    def _set(self, step: ProcessStep) -> None:
        self._serial += 1
        due = step.when if not self._suspended else step.when + _lag(step.process)
        heapq.heappush(self._timers, (due, self._serial, step))

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> ProcessStep:
        """See :meth:`asyncio.AbstractEventLoop.call_later`."""
        # Most steps are set here, so this does not call the methods above.
        step = ProcessStep(callback, args, context)
        now = self._now if not self._suspended else self._now - _lag(step.process)
        step.when = when = now + delay if delay > 0.0 else now
        if self._suspended:
            self._set(step)
        else:
            self._serial += 1
            heapq.heappush(self._timers, (when, self._serial, step))
        return step

    def create_future(self) -> asyncio.Future[Any]:
        """See :meth:`asyncio.AbstractEventLoop.create_future`."""
        future = _Future(loop=self)
        self._serial += 1
        future.number = self._serial
        return future

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """See :meth:`asyncio.AbstractEventLoop.create_task`."""
        self._serial += 1
        return _Task(self._serial, coro, self, name, context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        """Raise an error: there are no threads."""
        raise RuntimeError(f"a thread in a simulation: {func}")

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there are no I/O events."""

    def _write_to_self(self) -> None:
        """Do nothing: no thread waits for a wake-up."""

    # Steps.

    def _run_once(self) -> None:
        """Run steps until the loop stops, instead of one round: there is nothing that the base class does between."""
        while True:
            if not self._queue:
                self._advance()
            batch: Iterable[ProcessStep]
            if len(self._queue) == 1:
                batch = (self._queue.popleft(),)
            else:
                batch, self._queue = self._ordered(self._queue), deque()
            for step in batch:
                if step.is_cancelled:
                    continue
                process = step.process
                if process is not None and (process.paused or not process.alive):
                    if process.alive:
                        process.held.append(step)
                    continue
                self.steps += 1
                try:
                    step.context.run(step.call, *step.arguments)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": "a step raised", "exception": error, "handle": step})
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _advance(self) -> None:
        """Let time jump to the next timer, and make all due timers ready."""
        timers = self._timers
        while timers:
            when, _, step = heapq.heappop(timers)
            if step.is_cancelled or (self._suspended and self._put_off(step, when)):
                continue
            if when > self._now:
                self._now = when
            if self._suspended:
                self._correct_rounding(step)
            self._queue.append(step)
            while timers and timers[0][0] <= self._now:
                due, _, step = heapq.heappop(timers)
                if not (self._suspended and self._put_off(step, due)):
                    self._queue.append(step)
            return
        if self._stopping:  # type: ignore[attr-defined]
            return
        raise StuckError("nothing is ready, and no timer is set")

    def _correct_rounding(self, step: ProcessStep) -> None:
        """A step that waits for a time must find that this time has come, by its own clock."""
        lag = _lag(step.process)
        while self._now - lag < step.when:
            self._now = math.nextafter(self._now, math.inf)

    def _put_off(self, step: ProcessStep, due: float) -> bool:
        """Whether a timer does not run now: its machine was suspended after it was set, or its process is dead."""
        process = step.process
        if process is None:
            return False
        if not process.alive:
            return True
        if process.asleep_since is not None:
            process.frozen.append(step)
            return True
        if step.when + process.lag <= due:
            return False
        self._set(step)
        return True

    def _ordered(self, batch: deque[ProcessStep]) -> list[ProcessStep]:
        """Steps grouped by process. The seed decides the order of the groups."""
        by_process: dict[Process | None, list[ProcessStep]] = {}
        for step in batch:
            by_process.setdefault(step.process, []).append(step)
        groups = list(by_process.values())
        if len(groups) > 1:
            self._chance.shuffle(groups)
        return [step for group in groups for step in group]

    # Processes.

    def pause(self, process: Process) -> None:
        """Pause a process, as SIGSTOP does: its steps wait while time continues."""
        process.paused = True

    def suspend(self, process: Process) -> None:
        """Suspend a process's machine: its steps wait, and its steady clock stops. Other clocks continue."""
        self._suspended = True
        process.paused = True
        process.asleep_since = self._now

    def resume(self, process: Process) -> None:
        """Resume a process, as SIGCONT does, or resume its machine."""
        process.paused = False
        if process.asleep_since is not None:
            process.lag += self._now - process.asleep_since
            process.asleep_since = None
            frozen, process.frozen = process.frozen, []
            for step in frozen:
                self._set(step)
        held, process.held = process.held, []
        self._queue.extend(held)

    def kill(self, process: Process) -> None:
        """Kill a process, as SIGKILL does: it takes no further step."""
        process.alive = False
        # Collected before ``held`` is cleared: a waiting step may hold the only reference to a task.
        process.tasks = [task for task in asyncio.all_tasks(self) if getattr(task, "process", None) is process]
        process.held.clear()


def _lag(process: Process | None) -> float:
    return 0.0 if process is None else process.lag
