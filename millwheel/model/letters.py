"""The states of dead letters, and how they change. Logs store the numbers, and ``dead_letter.proto`` has them, too."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["LetterAction", "LetterState"]


class LetterState(IntEnum):
    """The state of a letter."""

    WAITING = 0
    IN_REPLAY = 1
    """Its replay has begun. Its record has taken effect, or may still do so."""
    REPLAYED = 2
    """Its record has taken effect again, once."""
    DISCARDED = 3

    @property
    def word(self) -> str:
        """The state as people, requests and answers name it, such as ``in-replay``."""
        return self.name.lower().replace("_", "-")


class LetterAction(IntEnum):
    """A change of letters."""

    BEGIN = 1
    """Waiting letters are in replay from now on."""
    CONFIRM = 2
    """The records of letters in replay are ACKed."""
    DISCARD = 3
    """Waiting letters are given up."""
    DISCARD_ALSO_IN_REPLAY = 4
    """Letters are given up that wait, or that are in replay: their records may have taken effect, or still do so."""
