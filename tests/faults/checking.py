"""Checks that the guarantees allow a history. Pure: a history in, violations out.

Every record takes effect once on each path through the topology (G1, G9, G10). Its numbers have no gap (G2, G3). Each
window is complete, comes once, and comes in order (G5, G6, G7). No timer is early (G6). A cursor misses no record, and
repeats none that was ACKed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tests.faults.history import Advanced, Event, Mended, Received, Sent, Struck, Subscribed
from tests.faults.program import BELL, STREAMS, WINDOW, Numbered, Rung, WindowCount

_CLOCKS_SETTLE: Final = 60_000_000
"""Microseconds after a wrong clock is set right during which timers that it set may still fire."""
_INFINITY: Final = 1 << 62

Record = tuple[str, int]
"""A record's source and position."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation of kind lost, repeated, early, reordered, invented or wrong. ``at``: wall microseconds."""

    kind: str
    at: int
    text: str


def check(events: Iterable[Event]) -> list[Violation]:
    """All violations in a complete history. It is complete when all streams have ended."""
    checker = Checker()
    for event in events:
        checker.take(event)
    return checker.finish()


class Checker:
    """Checks the events one after the other."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self._sent: dict[Record, tuple[str, str, int, int]] = {}
        """Each sent record's key, group and timestamp, and the time when it was sent."""
        self._watermarks: dict[str, int] = {}
        self._cursors: dict[str, _Cursor] = defaultdict(_Cursor)
        self._came: dict[str, set[Record]] = defaultdict(set)
        self._numbers: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
        """The numbers that were seen, by stream and by key or group."""
        self._windows: dict[tuple[str, int], WindowCount] = {}
        self._bells: set[tuple[str, int]] = set()
        self._clocks_wrong_until = 0
        self._last = 0

    def take(self, event: Event) -> None:
        """Take the next event, in the order of time."""
        self._last = max(self._last, event.at)
        match event:
            case Sent():
                rows = zip(event.keys, event.groups, event.timestamps, strict=True)
                for position, (key, group, timestamp) in enumerate(rows, event.first):
                    self._sent[event.source, position] = (key, group, timestamp, event.at)
                self._watermarks.setdefault(event.source, -_INFINITY)
            case Advanced():
                self._watermarks[event.source] = _INFINITY if event.watermark is None else event.watermark
            case Subscribed():
                self._cursors[event.stream].again(event.durable)
            case Received():
                self._received(event)
            case Struck():
                self._clocks_wrong_until = max(self._clocks_wrong_until, _INFINITY if event.clock else 0)
            case Mended():
                if self._clocks_wrong_until == _INFINITY:
                    self._clocks_wrong_until = event.at + _CLOCKS_SETTLE

    def _bad(self, kind: str, at: int, text: str) -> None:
        self.violations.append(Violation(kind, at, text))

    def _received(self, event: Received) -> None:
        cursor = self._cursors[event.stream]
        for offset, fields in enumerate(event.values, event.first):
            value = msgspec.convert(fields, STREAMS[event.stream])
            wrong = cursor.take(offset, value)
            if wrong is None:
                self._taken(event.stream, value, event.at)
            elif wrong:
                self._bad(wrong, event.at, f"offset {offset} of {event.stream}: {value}")

    # Checks of each stream's records.

    def _taken(self, stream: str, value: Any, at: int) -> None:
        if isinstance(value, WindowCount):
            self._window(value, at)
        elif isinstance(value, Rung):
            self._rung(value, at)
        else:
            self._record(stream, value, at)

    def _record(self, stream: str, value: Numbered, at: int) -> None:
        record, text = (value.source, value.position), f"record {value.position} of {value.source} in {stream}"
        sent = self._sent.get(record)
        if sent is None:
            self._bad("invented", at, text)
        elif (value.key, value.group) != sent[:2]:
            self._bad("wrong", at, f"{text} has key and group {value.key, value.group}, and was sent with {sent[:2]}")
        name = value.group if stream == "totals" else value.key
        self._numbers[stream, name][value.number] += 1
        if record in self._came[stream] or self._numbers[stream, name][value.number] > 1:
            self._bad("repeated", at, f"{text}, as number {value.number} of {name}")
        self._came[stream].add(record)

    def _window(self, value: WindowCount, at: int) -> None:
        if (value.key, value.end) in self._windows:
            self._bad("repeated", at, f"window {value.end} of {value.key}")
        self._windows[value.key, value.end] = value
        if min(self._watermarks.values(), default=-_INFINITY) < value.end:
            self._bad("early", at, f"window {value.end} of {value.key}: no watermark was there")

    def _rung(self, value: Rung, at: int) -> None:
        text = f"bell {value.number} of {value.key}"
        if (value.key, value.number) in self._bells:
            self._bad("repeated", at, text)
        self._bells.add((value.key, value.number))
        if value.number % BELL:
            self._bad("invented", at, text)
        if value.now < value.due:
            self._bad("early", at, f"{text}: by its own clock, by {value.due - value.now} us")
        if at < value.due and at > self._clocks_wrong_until:
            self._bad("early", at, f"{text}: by {value.due - at} us")

    # Checks at the end: every expected result has come.

    def finish(self) -> list[Violation]:
        """Check for what is lost, when all events are known."""
        for stream in ("numbered", "totals", "passed"):
            for source, position in sorted(self._sent.keys() - self._came[stream]):
                at = self._sent[source, position][3]
                self._bad("lost", at, f"record {position} of {source} in {stream}")
        for (stream, name), numbers in self._numbers.items():
            gaps = sorted(set(range(1, max(numbers) + 1)) - numbers.keys())
            if gaps:
                self._bad("lost", self._last, f"numbers {gaps[:5]} of {name} in {stream}")
        self._finish_windows()
        self._finish_bells()
        return self.violations

    def _finish_windows(self) -> None:
        counts = Counter((key, stamp - stamp % WINDOW + WINDOW) for key, _, stamp, _ in self._sent.values())
        for key, end in counts.keys() | self._windows.keys():
            window, count = self._windows.get((key, end)), counts[key, end]
            if window is None:
                self._bad("lost", self._last, f"window {end} of {key}")
            elif window.count != count:
                self._bad("wrong", self._last, f"window {end} of {key}: {window.count} records and not {count}")
        by_key: dict[str, list[WindowCount]] = defaultdict(list)
        for window in self._windows.values():
            by_key[window.key].append(window)
        for key, windows in by_key.items():
            windows.sort(key=lambda one: one.order)
            if [one.end for one in windows] != sorted(one.end for one in windows):
                self._bad("reordered", self._last, f"windows of {key} were not closed in the order of their ends")
            if [one.order for one in windows] != list(range(1, len(windows) + 1)):
                self._bad("lost", self._last, f"windows of {key} are numbered {[one.order for one in windows][:9]} …")

    def _finish_bells(self) -> None:
        most = {key: max(numbers) for (stream, key), numbers in self._numbers.items() if stream == "numbered"}
        due = {(key, number) for key, last in most.items() for number in range(BELL, last + 1, BELL)}
        for key, number in sorted(due - self._bells):
            self._bad("lost", self._last, f"bell {number} of {key}")


class _Cursor:
    """The records that one durable cursor gave."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._position = 0
        """The next offset."""
        self._anew = False

    def again(self, durable: int) -> None:
        """A subscriber starts again at the last durable ACK, which it may not know."""
        self._position, self._anew = durable, True

    def take(self, offset: int, value: Any) -> str | None:
        """Check a record. Returns None for a new one, "" for an allowed repeat, or else the violation's text."""
        known, expected, again = len(self._values), self._position, self._anew
        self._position, self._anew = offset + 1, False
        if offset < expected:
            return "reordered" if self._values[offset] is None else "repeated"
        if offset > (known if again else expected):
            self._values += [None] * (offset - known) + [value]
            return "lost"
        if offset < known:
            return "" if self._values[offset] == value else "wrong"
        self._values.append(value)
        return None
