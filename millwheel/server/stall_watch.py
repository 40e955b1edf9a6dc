"""A thread that sees when its process does not get to run, with a metric."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from millwheel.model.stalls import StallMeter

__all__ = ["StallWatch", "watch_stalls"]

log = logging.getLogger("millwheel")

PERIOD_SECONDS: Final = 0.25
_LOGGED_SECONDS: Final = 1.0
"""A stall of this length is logged. Shorter ones delay no lease."""
_LINE_EVERY_SECONDS: Final = 60.0
"""Seconds between two lines."""


class StallWatch(Collector):
    """Measures stalls from :meth:`start` on. Any thread may ask."""

    def __init__(self) -> None:
        self._meter = StallMeter(PERIOD_SECONDS, time.monotonic(), time.process_time())
        self._ended = threading.Event()

    def start(self) -> None:
        """Start the thread. It ends with :meth:`stop`, or with the process."""
        threading.Thread(target=self._run, name="millwheel-stalls", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon, without waiting for it."""
        self._ended.set()

    def share(self) -> float:
        """The share of the last ten seconds in which the process did not get to run, 0 to 1."""
        return self._meter.share(time.monotonic())

    def longest(self) -> float:
        """The longest stall within the last minute, in seconds."""
        return self._meter.longest(time.monotonic())

    def collect(self) -> list[CounterMetricFamily]:
        """See :class:`prometheus_client.registry.Collector`."""
        return [
            CounterMetricFamily(
                "millwheel_stalled_seconds",
                "Time in which the process did not get to run: its machine swaps, has no CPU left, or has paused it",
                value=self._meter.total,
            )
        ]

    def _run(self) -> None:
        logged = -_LINE_EVERY_SECONDS
        while not self._ended.wait(PERIOD_SECONDS):
            now = time.monotonic()
            stalled = self._meter.woken(now, time.process_time())
            if stalled >= _LOGGED_SECONDS and now - logged >= _LINE_EVERY_SECONDS:
                logged = now
                log.warning("this process did not get to run for %.1f s: its machine swaps or has no CPU left", stalled)


def watch_stalls(stack: ExitStack, registry: CollectorRegistry) -> StallWatch:
    """Watch until ``stack`` closes, with a metric in ``registry``."""
    watch = StallWatch()
    registry.register(watch)
    watch.start()
    stack.callback(watch.stop)
    return watch
