"""Dead letters: records and timers that a failure policy removed after failures (``on_failure=dead_letter()``)."""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = ["LETTER_QUERY_PREFIX", "DeadLetter", "letter_id", "letter_query", "replayed_offset"]

LETTER_QUERY_PREFIX: Final = "dead-letters/"
"""The ids of replayed records belong to a query of this prefix and the incarnation of the letters' log (6.1.1)."""

_ID_BYTES: Final = 16


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
    delivery_key: bytes = b""
    """The key of the record or timer in its computation. Steps of the library may have keys of their own."""
    incarnation: str = ""
    """The incarnation id of the computation. Another computation that has its name later has another one."""
    code: str = ""
    """The digest of the code package that failed, as ``millwheel topology describe`` shows it."""
    replay_of: int | None = None
    """The offset of the letter whose replay has failed. None: the record was no replay."""
    failed_at: int = 0
    """The wall time of the last attempt, in microseconds."""


def letter_query(log: str) -> str:
    """The query of the ids of replayed records. ``log``: the incarnation id of the letters' log."""
    return LETTER_QUERY_PREFIX + log


def letter_id(offset: int) -> bytes:
    """The id of the record of the letter at ``offset``, within the query."""
    return offset.to_bytes(_ID_BYTES, "big")


def replayed_offset(query: str, record_id: bytes) -> int | None:
    """The offset of the letter that a record with this id replays. None if the query is another one."""
    return int.from_bytes(record_id, "big") if query.startswith(LETTER_QUERY_PREFIX) else None
