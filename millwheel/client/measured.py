"""The open injectors and subscriptions of this process, and what the closed ones have counted.

This module does not import the Prometheus library: :mod:`millwheel.client.metrics` reads what is here at each scrape. A
program without metrics pays for an entry in a set when a client opens, and for nothing else.
"""

from __future__ import annotations

import os
from collections import defaultdict
from threading import Lock
from typing import Final, Protocol
from weakref import WeakSet

from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = [
    "INJECTORS",
    "SUBSCRIPTIONS",
    "ClientLabels",
    "MeasuredClient",
    "MeasuredClients",
    "Readings",
    "watermark_gauges",
]

ClientLabels = tuple[str, str]
"""The stream, and the name of the injector process or of the cursor."""

Readings = dict[tuple[str, str], float]
"""By the name of a metric, and the value of its label besides those of the client. Empty: it has no other label."""


class MeasuredClient(Protocol):
    """What an open client shows. Any thread may read it."""

    @property
    def labels(self) -> ClientLabels:
        """Who it is."""

    def counts(self) -> Readings:
        """What it has counted since it was opened. No count ever falls."""

    def gauges(self) -> Readings:
        """How it is now."""


class MeasuredClients:
    """The open clients of one kind. They are referred to weakly, so one that is not closed can be collected."""

    def __init__(self) -> None:
        self.kept = False
        """Whether the counts of closed clients are kept, because metrics show them."""
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Drop everything. A forked process has no clients: those of its parent count there."""
        self._lock = Lock()
        self._open = WeakSet[MeasuredClient]()
        self._past: defaultdict[ClientLabels, Readings] = defaultdict(dict)

    def enter(self, client: MeasuredClient) -> None:
        """The client is open."""
        with self._lock:
            self._open.add(client)

    def leave(self, client: MeasuredClient) -> None:
        """The client is closed. No effect the second time."""
        with self._lock:
            if client in self._open:
                self._open.remove(client)
                if self.kept:
                    _add(self._past[client.labels], client.counts())

    def look(self) -> tuple[list[tuple[ClientLabels, Readings]], dict[ClientLabels, Readings]]:
        """The gauges of each open client, and the sums of the counts of all clients, also of closed ones."""
        with self._lock:
            sums = defaultdict(dict, {labels: dict(counts) for labels, counts in self._past.items()})
            gauges: list[tuple[ClientLabels, Readings]] = []
            for client in self._open:
                _add(sums[client.labels], client.counts())
                gauges.append((client.labels, client.gauges()))
        return gauges, dict(sums)


def _add(sums: Readings, counts: Readings) -> None:
    for name, count in counts.items():
        sums[name] = sums.get(name, 0.0) + count


def watermark_gauges(watermark: int, now: int, *, idle: bool = False) -> Readings:
    """A watermark and its data lag, in seconds. The arguments are in microseconds.

    An infinite watermark has no value. One that does not rise, because its process is idle, has no lag.
    """
    if not MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
        return {}
    gauges: Readings = {("watermark_timestamp_seconds", ""): watermark / 1e6}
    if not idle:
        gauges["data_lag_seconds", ""] = (now - watermark) / 1e6
    return gauges


INJECTORS: Final = MeasuredClients()
SUBSCRIPTIONS: Final = MeasuredClients()
