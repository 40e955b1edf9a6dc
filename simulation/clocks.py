"""The clocks and the randomness of simulated processes, which replace those of the machine, and the places of code.

The product reads clocks through the ``time`` module and draws names with ``uuid4``. During a run these belong to the
simulated process. Its wall clock has skew, drift and jumps. Its steady clocks show virtual time, with the time for
which the machine was suspended (CLOCK_BOOTTIME) or without it (CLOCK_MONOTONIC).

A traceback is part of a dead letter, and a long one takes longer to send. It therefore names files from the project on.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from millwheel.worker.process.load import LoadMeter
from simulation.loop import SimulatedLoop
from simulation.process import PROCESS

__all__ = ["BEGINNING", "find_places", "replaced"]

BEGINNING: Final = 1_700_000_000.0
"""The true wall time at virtual second 0, in seconds since the epoch."""

_NAMES: Final = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "clock_gettime")
_REAL: Final = {name: getattr(time, name) for name in _NAMES}
_REPLACED: Final = frozenset({*_REAL.values(), time.thread_time, uuid.uuid4})


_ROOT: Final = f"{Path(__file__).parents[1]}/"
_FORMATTED: Final = traceback.StackSummary.format_frame_summary


@contextmanager
def replaced(loop: SimulatedLoop, seed: int) -> Iterator[None]:
    """Inside this context, clocks, randomness and the machine's load are simulated, and tracebacks are the same."""

    def wall() -> float:
        process = PROCESS.get()
        true = loop.now
        return BEGINNING + (true if process is None else process.clock.wall(true))

    def drawn() -> uuid.UUID:
        return uuid.UUID(int=random.getrandbits(128), version=4)

    def named(clock: int) -> float:
        if clock == time.CLOCK_REALTIME:
            return wall()
        return loop.time() if clock == time.CLOCK_MONOTONIC else loop.now

    steady: Callable[[], float] = loop.time
    fakes: dict[Any, Any] = {
        _REAL["time"]: wall,
        _REAL["time_ns"]: lambda: int(wall() * 1e6) * 1_000,
        _REAL["monotonic"]: steady,
        _REAL["monotonic_ns"]: lambda: int(steady() * 1e9),
        _REAL["perf_counter"]: steady,
        _REAL["clock_gettime"]: named,
        time.thread_time: lambda: 0.0,
        uuid.uuid4: drawn,
    }
    state = random.getstate()
    random.seed(seed)
    with ExitStack() as stack:
        for module, name, real in _places():
            stack.enter_context(patch.object(module, name, fakes[real]))
        stack.enter_context(patch.object(LoadMeter.__init__, "__defaults__", _steadied(steady)))
        stack.enter_context(patch("millwheel.worker.process.load.psutil", _MACHINE))
        stack.enter_context(patch.object(traceback.StackSummary, "format_frame_summary", _placed))
        try:
            yield
        finally:
            random.setstate(state)


def _placed(stack: traceback.StackSummary, frame: traceback.FrameSummary) -> str:
    """Format a frame of a traceback as Python does, without the folder of this project or of the installation."""
    return _FORMATTED(stack, frame).replace(_ROOT, "", 1)


def find_places() -> None:
    """Find in advance what :func:`replaced` replaces, so that forked processes need not search again."""
    _places()


@cache
def _places() -> list[tuple[Any, str, Any]]:
    """Module, name and function: where the product, and the ``time`` module itself, refer to a replaced function."""
    modules = [time, *(module for name, module in sorted(sys.modules.items()) if name.startswith("millwheel."))]
    found = []
    for module in modules:
        for name, value in list(vars(module).items()):
            if callable(value) and getattr(value, "__module__", "") in ("time", "uuid") and value in _REPLACED:
                found.append((module, name, value))
    return found


def _steadied(steady: Callable[[], float]) -> tuple[Any, ...]:
    """The defaults of a load meter, with a simulated clock."""
    defaults = LoadMeter.__init__.__defaults__ or ()
    return tuple(steady if one is _REAL["monotonic"] else one for one in defaults)


_MACHINE: Final = SimpleNamespace(
    Process=lambda: SimpleNamespace(
        cpu_times=lambda: SimpleNamespace(user=0.0, system=0.0), memory_info=lambda: SimpleNamespace(rss=64 << 20)
    ),
    virtual_memory=lambda: SimpleNamespace(total=8 << 30),
)
"""A machine that always reports zero CPU time and constant memory."""
