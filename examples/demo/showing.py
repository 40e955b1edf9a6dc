"""The demonstration's output while it runs: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.zeitgeist.clock import local_time
from millwheel import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["Show", "percentiles", "say"]

LINE_EVERY: float = 5.0
"""Seconds between two plain lines."""

_began = time.monotonic()


def say(text: str) -> None:
    """Print a line, with the seconds since the start."""
    print(f"[{time.monotonic() - _began:6.1f} s] {text}", flush=True)


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """p50, p95 and p99."""
    ordered = sorted(values)
    p50, p95, p99 = (ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] for percent in (50, 95, 99))
    return p50, p95, p99


class Show:
    """The progress towards ``total`` records. Use it as ``with``."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total = what, total
        self._bar: Progress | None = None
        self._last = 0.0
        if sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[where]}"),
                TimeElapsedColumn(),
                console=Console(file=sys.stdout),
            )
            self._task = self._bar.add_task(what, total=total, where="")

    def __enter__(self) -> Show:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, watermark: int, alerts: int) -> None:
        """Show the number of committed records, and the low watermark behind all computations."""
        known = MIN_TIMESTAMP < watermark < MAX_TIMESTAMP
        where = f"low watermark {local_time(watermark):%F %H:%M}, {alerts} alerts" if known else ""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, where=where)
        elif time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            progress = f"{done:,} of {self._total:,}" + (f"; {where}" if where else "")
            say(f"{self._what}: {progress if done else 'waiting for the first'}")
