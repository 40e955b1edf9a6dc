"""A thread that checks whether the event loop is blocked, and logs the hook that blocks it.

A hook that does not return is never measured, because the measurement ends with the hook. So this thread reads the
running hook, its key and its line from the event loop's stack.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from millwheel.model.time import format_duration, seconds
from millwheel.sdk.batches.context import BatchContext
from millwheel.sdk.context import Context
from millwheel.sdk.scope import Scope
from millwheel.worker.process.tallies import ComputationName

__all__ = ["RunningHook", "Watchdog", "running_hook"]

log = logging.getLogger("millwheel.worker")

_LOOKS_PER_LIMIT: Final = 4
"""Checks per limit. So a hook is logged late by at most a quarter of the limit."""
_LINE_EVERY_SECONDS: Final = 60.0
"""Seconds between two lines about one hook of one computation."""


@dataclass(frozen=True, slots=True)
class RunningHook:
    """A hook on the stack. ``line``: the current line of user code. ``stack``: the frames from the hook inwards."""

    scope: Scope
    hook: str
    key: str
    line: str
    stack: str


def running_hook(innermost: FrameType | None) -> RunningHook | None:
    """The running hook of a stack: the outermost function with a context among its arguments.

    Of a batch, it has the first key.
    """
    found: FrameType | None = None
    frame = innermost
    while frame is not None:
        if _work_of(frame) is not None:
            found = frame
        frame = frame.f_back
    if found is None or innermost is None:
        return None
    work = _work_of(found)
    assert work is not None, "it was found there"
    lines = []
    frame = innermost
    while frame is not None and frame is not found.f_back:
        lines.append(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    code = innermost.f_code
    return RunningHook(
        work[0],
        found.f_code.co_name,
        work[1],
        f"{Path(code.co_filename).name}:{innermost.f_lineno} in {code.co_name}",
        "".join(traceback.StackSummary.from_list(lines[::-1]).format()),
    )


def _work_of(frame: FrameType) -> tuple[Scope, str] | None:
    """The scope and the key of the context among a function's arguments. None for the engine's own functions."""
    if str(frame.f_globals.get("__name__", "")).startswith(("millwheel.worker.", "millwheel.sdk.")):
        return None
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    local = frame.f_locals
    for given in (local.get(name) for name in names):
        one = given._first if isinstance(given, BatchContext) else given
        if isinstance(one, Context):
            return one._scope, one._key.decode("utf-8", "backslashreplace")
    return None


class Watchdog:
    """Checks one event loop several times per ``limit`` seconds, until it is stopped."""

    def __init__(self, limit: float, place_of: Callable[[Scope], ComputationName | None]) -> None:
        """``place_of``: the computation of a hook's scope. It is called in the watchdog's thread."""
        self._limit = limit
        self._place_of = place_of
        self._beaten = time.monotonic()
        self._waits = False
        """Whether a ``_beat`` is scheduled in the loop, and has not run yet."""
        self._written: dict[tuple[ComputationName, str], float] = {}
        self._running: tuple[ComputationName, str] | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start. Call this in the event loop to be checked."""
        loop, ident = asyncio.get_running_loop(), threading.get_ident()
        self._thread = threading.Thread(target=self._look, args=(loop, ident), name="millwheel-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, without waiting for the thread."""
        self._ended.set()

    def running(self) -> dict[tuple[ComputationName, str], float]:
        """The hook that blocks the loop now, with its seconds so far. Empty if none does. Any thread may call this."""
        running = self._running
        return {} if running is None else {running: time.monotonic() - self._beaten}

    def _beat(self) -> None:
        self._beaten, self._running, self._waits = time.monotonic(), None, False

    def _look(self, loop: asyncio.AbstractEventLoop, ident: int) -> None:
        looked = time.monotonic()
        while not self._ended.wait(self._limit / _LOOKS_PER_LIMIT):
            beaten, before, looked = self._beaten, looked, time.monotonic()
            # If this thread was delayed, too, the cause is the machine or the whole process, not a hook.
            stood = looked - before >= self._limit
            if looked - beaten >= self._limit and not stood:
                self._blocked(sys._current_frames().get(ident), beaten)
            if self._waits:
                continue
            try:
                self._waits = True
                loop.call_soon_threadsafe(self._beat)
            except RuntimeError:
                return  # the loop is closed

    def _blocked(self, frame: FrameType | None, beaten: float) -> None:
        """The loop has been blocked since ``beaten``."""
        hook = running_hook(frame)
        place = None if hook is None else self._place_of(hook.scope)
        if hook is None or place is None:
            return
        self._running = place, hook.hook
        now = time.monotonic()
        if now - self._written.get((place, hook.hook), -_LINE_EVERY_SECONDS) < _LINE_EVERY_SECONDS:
            return
        self._written[place, hook.hook] = now
        log.warning(
            "computation %s: %s has kept the event loop for %s so far, now for key %r at %s; "
            "nothing else of this worker runs until it returns\n%s",
            "/".join(place), hook.hook, format_duration(seconds(now - beaten)), hook.key, hook.line, hook.stack,
        )  # fmt: skip
