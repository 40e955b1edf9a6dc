"""The highest sequencer known for every producing key, and for every injector process (6.2).

A sender whose sequencer is lower than a known one for any of its keys has a successor. Its deliveries are refused, not
ACKed. The successor sends everything that is still outstanding.

A stream that goes away and comes back has another *life* under the same injector group. The *floor* of a life is a
number above all sequencers of the former lives. Deliveries below it are refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from typing import Final

from millwheel.store.contract import TERMINAL_SEQUENCER

__all__ = ["SequencerMap", "SequencerRow", "Span", "group_of_life", "life_span"]

Span = tuple[bytes, bytes | None] | str
"""Producing keys as (start, end), or an injector process (its name as a sender)."""

SequencerRow = tuple[str, Span, int]
"""(group or "" for an injector process, span, sequencer)."""

_FIRST_KEY: Final = b""


def life_span(group: str) -> str:
    """The span of the floor of an injector group: no process has the empty name."""
    return f"{group}/"


def group_of_life(span: Span) -> str:
    """The injector group whose floor the span names. Empty for any other span."""
    return span[:-1] if isinstance(span, str) and span.endswith("/") else ""


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

    def raise_to(self, start: bytes, end: bytes | None, value: int) -> bool:
        """Raise every smaller value between ``start`` and ``end`` to ``value``. Returns whether there was one."""
        first, last = self._range(start, end)
        if min(self.values[first:last]) >= value:
            return False
        self._cut(start)
        if end is not None:
            self._cut(end)
        first, last = self._range(start, end)
        self.values[first:last] = [max(old, value) for old in self.values[first:last]]
        # Neighbours with equal values become one step. Only these may be equal now.
        first, last = max(first, 1), min(last + 1, len(self.starts))
        kept = [i for i in range(first, last) if self.values[i] != self.values[i - 1]]
        self.starts[first:last] = [self.starts[i] for i in kept]
        self.values[first:last] = [self.values[i] for i in kept]
        return True

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
            return max(self._injectors.get(span, 0), self._injectors.get(life_span(group), 0))
        steps = self._keys.get(group)
        return steps.highest(*span) if steps else 0

    def learn(self, group: str, span: Span, sequencer: int) -> bool:
        """Raise the sequencers in ``span``. Returns whether that changed anything.

        The floor of an injector group replaces what is known of the processes of the group's former lives.
        """
        if isinstance(span, str):
            if self._injectors.get(span, 0) >= sequencer:
                return False
            if group_of_life(span):
                former = [one for one, n in self._injectors.items()
                          if one.startswith(span) and not sequencer <= n < TERMINAL_SEQUENCER]  # fmt: skip
                for injector in former:
                    del self._injectors[injector]
            self._injectors[span] = sequencer
        else:
            steps = self._keys.setdefault(group, _Steps())
            if not steps.raise_to(*span, sequencer):
                return False
        self.current.clear()
        return True

    def forget(self, group: str) -> bool:
        """Drop what is known of a removed computation's intervals. Returns whether anything was."""
        if self._keys.pop(group, None) is None:
            return False
        self.current.clear()
        return True

    @property
    def computations(self) -> Collection[str]:
        """The sending computations' incarnations of which a sequencer is known."""
        return self._keys.keys()

    def floor(self, group: str) -> int:
        """The floor of an injector group's present life. 0: none is known."""
        return self._injectors.get(life_span(group), 0)

    def has_above(self, group: str, floor: int) -> bool:
        """Whether a process of the injector group has a known sequencer of at least ``floor``."""
        span = life_span(group)
        known = (
            number for injector, number in self._injectors.items() if injector.startswith(span) and injector != span
        )
        return any(floor <= number < TERMINAL_SEQUENCER for number in known)

    def rows(self) -> list[SequencerRow]:
        """The whole map, as rows that ``learn`` accepts. Floors come first, because they replace other rows."""
        found: list[SequencerRow] = [("", injector, number) for injector, number in self._injectors.items()]
        found.sort(key=lambda row: not group_of_life(row[1]))
        for group, steps in self._keys.items():
            ends: list[bytes | None] = [*steps.starts[1:], None]
            for start, end, number in zip(steps.starts, ends, steps.values, strict=True):
                if number:
                    found.append((group, (start, end), number))
        return found
