"""When the calls of a worker's topologies run: by shares, and in turns with the rest of the event loop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import Any, Final
from weakref import WeakValueDictionary

from millwheel.worker.interval.hook_meter import BatchTime

__all__ = ["IDLE_TURNS", "IDLE_TURN_SECONDS", "RUN_SECONDS", "LoopPause", "RunQueue", "RunShare"]

log = logging.getLogger("millwheel.worker")

RUN_SECONDS: Final = 0.005
"""How long the run queue runs before sockets and timers are served."""

_SLICE_SECONDS: Final = 0.001
"""How long one share of the run queue runs before the next one is chosen."""

IDLE_TURNS: Final = 32
"""After how many turns in succession without work the event loop counts as idle. They take some 100 us together.
One is not enough: gRPC's thread and the store's need some microseconds for their next answer."""

IDLE_TURN_SECONDS: Final = 0.000_05
"""A turn of the event loop that takes longer had work. A turn without work takes 2 to 4 us."""

_BATCH_SECONDS: Final = 0.1
"""How long a batch of hooks may take. The calls of clients and of other processes wait for it."""

_SHARED_BATCH_SECONDS: Final = 0.01
"""The same while other shares have work. It is still some ten times what a commit takes."""

_LOOKED_AT: Final = 16
"""How many calls of a share are looked at for the next one of a host."""

_SHARED_SECONDS: Final = 1.0
"""How long batches stay so short after another share was served."""


class RunShare:
    """The calls of one topology in a :class:`RunQueue`, first in, first out."""

    def __init__(self, queue: RunQueue, weight: float) -> None:
        self._queue = queue
        self.weight = weight
        """How much time it gets, beside the weights of the others that have work."""
        self.used = 0.0
        """The seconds that its calls took, divided by the weight. After idle time it begins at the others' value."""
        self.calls: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.ready = False

    def post(self, call: Callable[[Any], None], argument: Any) -> None:
        """Run ``call(argument)`` soon, after everything that this share posted before."""
        self.calls.append((call, argument))
        if not self.ready:
            self._queue.enter(self)

    def at_end(self, call: Callable[[], None]) -> None:
        """Run ``call`` when no share has calls any more, or in the loop's next turn if that lasts."""
        self._queue.at_end(call)

    def follows(self, call: Callable[[Any], None], kind: type) -> bool:
        """Whether the next ``call`` of the share has an argument of that class.

        Calls of others may come before it. If too many do, it is not found.
        """
        for found, argument in islice(self.calls, _LOOKED_AT):
            if found == call:
                return type(argument) is kind
        return False


class RunQueue:
    """Runs posted calls on the event loop. A call that raises is logged, and the next one runs.

    Cores of one process send to each other without a network. Posting instead of calling keeps the stack flat, and
    lets every core run. The next calls are those of the share that has used the least time (start-time fair
    queueing). So a topology with much work leaves the others their time, however many intervals it has.

    After calls that took long, the event loop first serves everything else that is ready, and what follows from that.
    A message of gRPC or an answer of the store takes several turns of the loop, one after another. If calls ran in
    each turn, each of these turns would wait for another topology's batch of hooks, which no share counts.

    Exceptions that end the process (SystemExit, KeyboardInterrupt) propagate to the loop. The rest runs if the loop
    continues.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: list[RunShare] = []
        self._least = 0.0
        """What the share that was served last had used. No share begins below it, so idle time is not saved up."""
        self._shares: WeakValueDictionary[str, RunShare] = WeakValueDictionary()
        self._scheduled = False
        self._running = False
        self._ends: deque[Callable[[], None]] = deque()
        """What runs when no share has calls any more."""
        self.batch_time = BatchTime(_BATCH_SECONDS)
        """How long a batch of hooks may take now."""
        self._last: RunShare | None = None
        self._shared_until = 0.0
        self._pause = LoopPause()

    def share(self, name: str, weight: float = 1.0) -> RunShare:
        """The share of ``name``, now with ``weight``. It lasts as long as a host holds it."""
        share = self._shares.get(name)
        if share is None:
            share = self._shares[name] = RunShare(self, weight)
        if weight != share.weight:  # what it used beyond the others counts by the new weight, too
            share.used = self._least + (share.used - self._least) * share.weight / weight
            share.weight = weight
        return share

    def enter(self, share: RunShare) -> None:
        """``share`` has calls again."""
        share.ready = True
        share.used = max(share.used, self._least)
        self._ready.append(share)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """A turn of the event loop."""
        now = time.monotonic()
        if self._pause.is_over(now):
            self._run(now)
        else:
            self._loop.call_soon(self._turn)

    def at_end(self, call: Callable[[], None]) -> None:
        """Run ``call`` at the end of this run: when no share has calls. What it posts runs before the next end.

        Invariant (G8): it runs in this run, or in the loop's next turn. It does not count as a share's time.
        """
        if self._running:
            self._ends.append(call)
        else:
            self._loop.call_soon(call)

    def _run(self, now: float) -> None:
        began, deadline = now, now + RUN_SECONDS
        self._running = True
        try:
            while now < deadline:
                if self._ready:
                    now = self._serve_next(now)
                elif self._ends:
                    before = now
                    self._ends.popleft()()
                    now = time.monotonic()
                    began += now - before
                else:
                    break
        finally:
            self._running = False
            while self._ends:
                self._loop.call_soon(self._ends.popleft())
            if now - began > _SLICE_SECONDS:
                self._pause.begin(now, now - began)
            if self._ready:
                self._loop.call_soon(self._turn)
            else:
                self._scheduled = False

    def _serve_next(self, began: float) -> float:
        """Serve the share that has used the least time. Returns the time."""
        share = min(self._ready, key=attrgetter("used"))
        if share is not self._last:
            self._last, self._shared_until = share, began + _SHARED_SECONDS
            self.batch_time.seconds = _SHARED_BATCH_SECONDS
        elif began > self._shared_until:
            self.batch_time.seconds = _BATCH_SECONDS
        self._least = share.used
        now = self._serve(share, began + _SLICE_SECONDS)
        share.used += (now - began) / share.weight
        return now

    def _serve(self, share: RunShare, until: float) -> float:
        """Run calls of ``share`` until a time. Returns the time."""
        calls, now = share.calls, until
        while calls:
            call, argument = calls.popleft()
            try:
                call(argument)
            except (Exception, asyncio.CancelledError):
                # This callback is not a task, so ``CancelledError`` has no owner and would stop the queue.
                log.exception("a call of the run queue failed")
            now = time.monotonic()
            if now > until:
                break
        if not calls:
            share.ready = False
            self._ready.remove(share)
        return now


class LoopPause:
    """A pause of the run queue, until the event loop is idle, but for no longer than the run before it."""

    def __init__(self) -> None:
        self._until = 0.0
        self._last = 0.0
        """When the loop's last turn was."""
        self._idle = IDLE_TURNS
        """How many turns in succession had no work."""

    def begin(self, now: float, ran: float) -> None:
        """Calls have run for ``ran`` seconds. Beside a loop that is never idle they get about half of the time (G8)."""
        self._until, self._last, self._idle = now + min(ran, RUN_SECONDS), now, 0

    def is_over(self, now: float) -> bool:
        """Whether calls may run in this turn of the loop."""
        if self._idle < IDLE_TURNS:
            self._idle = self._idle + 1 if now - self._last < IDLE_TURN_SECONDS else 0
            self._last = now
        return self._idle >= IDLE_TURNS or now >= self._until
