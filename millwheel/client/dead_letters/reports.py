"""What a replay or a discarding has done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["DiscardReport", "RefusedLetter", "ReplayReport"]


@dataclass(frozen=True, slots=True)
class RefusedLetter:
    """A letter that cannot be replayed, and why."""

    offset: int
    reason: str


@dataclass(slots=True)
class ReplayReport:
    """The result of a replay, which grows while it runs.

    Attributes:
        replayed: Letters whose records have taken effect again, once. If a record has failed again, a new letter is
            that effect.
        elsewhere: Letters that another replay has confirmed, or that were discarded meanwhile.
        refused: Letters that cannot be replayed. They stay as they were.
        unconfirmed: Letters whose records are not ACKed yet. Another replay completes them.
        why_unconfirmed: Why these are not ACKed. Empty: there are none.
        reached: It is done with all letters up to this one. None: with all that were meant.
    """

    replayed: list[int] = field(default_factory=list)
    elsewhere: list[int] = field(default_factory=list)
    refused: list[RefusedLetter] = field(default_factory=list)
    unconfirmed: list[int] = field(default_factory=list)
    why_unconfirmed: str = ""
    reached: int | None = -1

    def left(self, offsets: Iterable[int]) -> list[int]:
        """Of letters that were meant, those that it has not come to. The replay of some may have begun."""
        if self.reached is None:
            return []
        done = {*self.replayed, *self.elsewhere, *self.unconfirmed, *(one.offset for one in self.refused)}
        return sorted(offset for offset in offsets if offset > self.reached and offset not in done)


@dataclass(slots=True)
class DiscardReport:
    """The result of a discarding, which grows while it runs.

    Attributes:
        discarded: Letters that are discarded now.
        in_replay: Letters whose replay has begun. They stay as they are.
        elsewhere: Letters that were replayed meanwhile, or that the log has dropped.
    """

    discarded: list[int] = field(default_factory=list)
    in_replay: list[int] = field(default_factory=list)
    elsewhere: list[int] = field(default_factory=list)
