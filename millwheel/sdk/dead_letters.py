"""Dead letters: records and timers that a computation's failure policy gave up (``on_failure=dead_letter()``)."""

from __future__ import annotations

import msgspec

__all__ = ["DeadLetter", "dead_letter_stream"]


class DeadLetter(msgspec.Struct, frozen=True):
    """What a dead-letter stream carries: the record (or timer) as it was, and why it was given up."""

    computation: str
    key: str
    stream: str
    """The input stream of the record; empty for a timer."""
    timestamp: int
    value: bytes
    """The record's value as it was encoded; empty for a timer."""
    timer_tag: str
    attempts: int
    error: str
    traceback: str


def dead_letter_stream(topology: str) -> str:
    """The stream that the dead letters of ``topology`` go to; every topology has one, undeclared."""
    return f"{topology}.dead-letters"
