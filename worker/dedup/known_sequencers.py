"""The highest sequencer known for every producing key, and for every injector process (6.2).

A sender whose sequencer is lower than a known one for any of its keys has a successor. Its deliveries are refused, not
ACKed. The successor sends everything that is still outstanding.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

__all__ = ["SequencerMap", "SequencerRow", "Span"]

Span = tuple[bytes, bytes | None] | str
"""Producing keys as (start, end), or an injector process (its ``origin``)."""

SequencerRow = tuple[str, Span, int]
"""(group or "" for an injector process, span, sequencer)."""

_FIRST_KEY: Final = b""


class _Steps:
    """A step function of the key: ``values[i]`` applies from ``starts[i]`` on."""

    __slots__ = ("starts", "values")

    def __init__(self) -> None:
        self.starts = [_FIRST_KEY]
        self.values = [0]

    def highest(self, start: bytes, end: bytes | None) -> int:
        """The largest value of a key from ``start`` to below ``end``."""
        first, last = self._range(start, end)
        return max(self.values[first:last])

    def raise_to(self, start: bytes, end: bytes | None, value: int) -> None:
        """Raise every smaller value between ``start`` and ``end`` to ``value``."""
        self._cut(start)
        if end is not None:
            self._cut(end)
        first, last = self._range(start, end)
        self.values[first:last] = [max(old, value) for old in self.values[first:last]]
        kept = [i for i in range(len(self.starts)) if i == 0 or self.values[i] != self.values[i - 1]]
        self.starts = [self.starts[i] for i in kept]
        self.values = [self.values[i] for i in kept]

    def _cut(self, at: bytes) -> None:
        index = bisect_left(self.starts, at)
        if index == len(self.starts) or self.starts[index] != at:
            self.starts.insert(index, at)
            self.values.insert(index, self.values[index - 1])

    def _range(self, start: bytes, end: bytes | None) -> tuple[int, int]:
        first = bisect_left(self.starts, start)
        if first == len(self.starts) or self.starts[first] != start:
            first -= 1
        return first, len(self.starts) if end is None else bisect_left(self.starts, end)


class SequencerMap:
    """Sequencers by sending group and key, and by injector process. Values never fall."""

    __slots__ = ("_injectors", "_keys", "current")

    def __init__(self) -> None:
        self._keys: dict[str, _Steps] = {}
        self._injectors: dict[str, int] = {}
        self.current: dict[str, int] = {}
        """Senders with a sequencer that the caller has found to be the highest, so that the usual delivery needs one
        look-up. Any higher sequencer clears it."""

    def highest(self, group: str, span: Span) -> int:
        """The highest sequencer known for any key in ``span``."""
        if isinstance(span, str):
            return self._injectors.get(span, 0)
        steps = self._keys.get(group)
        return steps.highest(*span) if steps else 0

    def learn(self, group: str, span: Span, sequencer: int) -> bool:
        """Raise the sequencers in ``span``. Returns whether that changed anything."""
        if isinstance(span, str):
            if self._injectors.get(span, 0) >= sequencer:
                return False
            self._injectors[span] = sequencer
        else:
            steps = self._keys.setdefault(group, _Steps())
            before = (list(steps.starts), list(steps.values))
            steps.raise_to(*span, sequencer)
            if before == (steps.starts, steps.values):
                return False
        self.current.clear()
        return True

    def rows(self) -> list[SequencerRow]:
        """The whole map, as rows that ``learn`` accepts."""
        found: list[SequencerRow] = [("", origin, number) for origin, number in self._injectors.items()]
        for group, steps in self._keys.items():
            ends: list[bytes | None] = [*steps.starts[1:], None]
            for start, end, number in zip(steps.starts, ends, steps.values, strict=True):
                if number:
                    found.append((group, (start, end), number))
        return found
