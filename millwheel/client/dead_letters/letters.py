"""Letters as operators see them, and which of them they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from millwheel.model.letters import LetterState
from millwheel.model.stream_names import full_name
from millwheel.sdk.dead_letters import DeadLetter

__all__ = ["UNHANDLED", "Letter", "LetterFilter", "LetterPage"]

FAR: Final = 500
"""Reading so many letters that are not meant takes longer than a call for the next one that is."""
UNHANDLED = frozenset({LetterState.WAITING, LetterState.IN_REPLAY})
"""The states of letters with which something is left to do."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter.

    Attributes:
        topology: The topology whose record failed.
        offset: The letter's id within its topology.
        content: What the computation wrote.
        state: What people have done with it.
    """

    topology: str
    offset: int
    content: DeadLetter
    state: LetterState

    @property
    def is_timer(self) -> bool:
        """Whether a timer failed, and no record."""
        return not self.content.stream

    @property
    def stream(self) -> str:
        """The full name of the record's stream. Empty for a timer."""
        return full_name(self.topology, self.content.stream) if self.content.stream else ""

    @property
    def failed_at(self) -> int:
        """When it failed, in microseconds. Letters of former versions have the record's timestamp instead."""
        return self.content.failed_at or self.content.timestamp


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters are meant: those that fit all fields.

    Attributes:
        offsets: These letters. None: any.
        computation: Letters of this computation. Empty: of any.
        key: Letters of this key. None: of any.
        since: Letters of failures from then on, in microseconds. None: of any time.
        error: Letters with this text in the error, in any case. Empty: any.
        states: Letters in these states.
    """

    offsets: frozenset[int] | None = None
    computation: str = ""
    key: str | None = None
    since: int | None = None
    error: str = ""
    states: frozenset[LetterState] = UNHANDLED

    def takes(self, letter: Letter) -> bool:
        """Whether the letter is meant."""
        content = letter.content
        return (
            letter.state in self.states
            and (self.offsets is None or letter.offset in self.offsets)
            and self.computation in ("", content.computation)
            and self.key in (None, content.key)
            and (self.since is None or letter.failed_at >= self.since)
            and self.error.casefold() in content.error.casefold()
        )

    def ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(first offset, offset after the last) of the parts of ``start .. end - 1`` with letters that may be meant.

        Letters that are far apart are in different parts, so that not all between them are read.
        """
        if self.offsets is None:
            if start < end:
                yield start, end
            return
        meant = sorted(offset for offset in self.offsets if start <= offset < end)
        first = meant[0] if meant else 0
        for offset, following in zip_longest(meant, meant[1:]):
            if following is None or following - offset > FAR:
                yield first, offset + 1
                first = following or 0


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some letters, in order. ``following``: where the next page begins. None: there are no more."""

    letters: Sequence[Letter]
    following: int | None
