"""How far sent records have come: which results are outstanding, and how late each result was. Pure.

The delay of a record is from when it was sent to when what two stages made of it was received. That of a window is from
when its last source had promised that nothing older comes.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from tests.faults.history import Advanced, Event, Received, Sent
from tests.faults.program import WINDOW

_STREAMS: Final = ("totals", "passed")
"""In which each record has to come."""
_INFINITY: Final = 1 << 62


class Arrival(NamedTuple):
    """When something came, and how late, in microseconds."""

    at: int
    delay: int


class Progress:
    """Takes the events one after the other."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str, int], int] = {}
        """When a record was sent that has not come: by stream, source and position."""
        self._windows: set[tuple[str, int]] = set()
        """Key and end of those that have not come."""
        self._promised: dict[str, int] = {}
        self._due: dict[int, int] = {}
        """By a window's end, when it could have been closed."""

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
        """Since when the oldest outstanding result has been under way. None: nothing is outstanding."""
        due = (self._due[end] for _, end in self._windows if end in self._due)
        return min((*self._records.values(), *due), default=None)

    def as_text(self) -> str:
        """The outstanding results."""
        due = sum(end in self._due for _, end in self._windows)
        return f"{dict(Counter(stream for stream, _, _ in self._records))} records and {due} windows are under way"
