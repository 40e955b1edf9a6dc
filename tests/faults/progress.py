"""The progress of sent records: the outstanding results, and the delay of each result. Pure.

The delay of a record is the time from its send to the receipt of its result, two stages later. The delay of a window
begins when its last source has declared that no older record comes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from tests.faults.history import Advanced, Event, Received, Sent
from tests.faults.program import WINDOW

_STREAMS: Final = ("totals", "passed")
"""The streams that have a result of each record."""
_INFINITY: Final = 1 << 62


class Arrival(NamedTuple):
    """The time of a result and its delay, in microseconds."""

    at: int
    delay: int


class Progress:
    """Takes the events one after the other."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, int], int] = {}
        """The time when a record was sent whose result is outstanding, by stream, source and position."""
        self._windows: set[tuple[str, int]] = set()
        """The key and end of each outstanding window."""
        self._promised: dict[str, int] = {}
        self._due: dict[int, int] = {}
        """The earliest time when a window could close, by its end."""

    def take(self, event: Event) -> list[Arrival]:
        """The results that one event brings for the first time."""
        match event:
            case Sent():
                self._promised.setdefault(event.source, -_INFINITY)
                for position, (key, timestamp) in enumerate(
                    zip(event.keys, event.timestamps, strict=True), event.first
                ):
                    self._records.update(((stream, event.source, position), event.at) for stream in _STREAMS)
                    self._windows.add((key, timestamp - timestamp % WINDOW + WINDOW))
            case Advanced():
                self._promised[event.source] = _INFINITY if event.watermark is None else event.watermark
                low = min(self._promised.values())
                for _, end in self._windows:
                    if end <= low:
                        self._due.setdefault(end, event.at)
            case Received(stream="windows"):
                come = self._windows.intersection((value[0], value[1]) for value in event.values)
                self._windows -= come
                return [Arrival(event.at, event.at - self._due.get(end, event.at)) for _, end in come]
            case Received(stream="totals" | "passed"):
                sent = [self._records.pop((event.stream, value[-2], value[-1]), None) for value in event.values]
                return [Arrival(event.at, event.at - at) for at in sent if at is not None]
        return []

    def since(self) -> int | None:
        """The time since when the oldest result is outstanding. None: no result is outstanding."""
        due = (self._due[end] for _, end in self._windows if end in self._due)
        return min((*self._records.values(), *due), default=None)

    def as_text(self) -> str:
        """The outstanding results."""
        due = sum(end in self._due for _, end in self._windows)
        return f"{dict(Counter(stream for stream, _, _ in self._records))} records and {due} windows are under way"
