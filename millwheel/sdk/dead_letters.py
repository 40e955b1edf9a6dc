"""Dead letters: records and timers that a computation's failure policy gave up (``on_failure=dead_letter()``)."""

from __future__ import annotations

from typing import Final

import msgspec

from millwheel.core.catalog import dead_letter_stream
from millwheel.sdk.codecs import codec_for

__all__ = ["DEAD_LETTER_CODEC", "DeadLetter", "dead_letter_stream"]


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


DEAD_LETTER_CODEC: Final = codec_for(DeadLetter, "a dead-letter stream")
"""How every dead-letter stream is encoded."""
