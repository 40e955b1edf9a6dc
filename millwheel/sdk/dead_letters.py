"""Dead letters: records and timers that a failure policy removed after failures (``on_failure=dead_letter()``)."""

from __future__ import annotations

import msgspec

__all__ = ["DeadLetter"]


class DeadLetter(msgspec.Struct, frozen=True):
    """A record of a dead-letter stream: the failed record or timer, and why it failed.

    ``timestamp`` is in microseconds since the epoch. ``attempts`` is the number of calls of the hook.
    """

    computation: str
    key: str
    """The record's key, as ``key_by`` or ``key`` says. Empty for a step that reads a stream without keys."""
    stream: str
    """The input stream of the record, as its computation calls it; empty for a timer."""
    timestamp: int
    value: bytes
    """The encoded value of the record; empty for a timer."""
    timer_tag: str
    attempts: int
    error: str
    traceback: str
