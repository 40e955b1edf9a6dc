"""What goes between a log's core and those who serve its subscribers, beside the messages of every core.

A *subscriber* is whatever object the shell chose for one Subscribe call; the core tells subscribers apart by
identity and hands them back in its instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from millwheel.rpc.failures import RequestError
from millwheel.worker.messages import Event, Instruction

__all__ = [
    "AckOffset",
    "Answer",
    "CursorInfo",
    "DeleteCursor",
    "EndSubscription",
    "Fetch",
    "ListCursors",
    "LogEvent",
    "LogInstruction",
    "Publish",
    "Start",
    "Subscribe",
    "Unsubscribe",
]


class Start(Enum):
    """Where a cursor that does not exist yet begins, or a tail."""

    OLDEST = "oldest"
    NOW = "now"


# Events.


@dataclass(slots=True)
class Subscribe:
    """A subscriber has come. ``cursor`` empty: a tail, that keeps nothing.

    ``resume``: everything below it was received before (the call is a continuation); None for a beginning. It holds
    for one ``life`` of the cursor, as a Publish named it; 0 for any.
    ``name`` is the same on every call of one subscriber, so that one that was taken over does not take its cursor back.
    ``window``: records sent beyond the cursor's last ACK, at most; a tail is bounded by its fetches alone.
    """

    subscriber: Any
    cursor: str
    start: Start
    window: int
    resume: int | None = None
    name: str = ""
    life: int = 0


@dataclass(slots=True)
class Fetch:
    """The subscriber takes ``responses`` more responses."""

    subscriber: Any
    responses: int = 1


@dataclass(slots=True)
class AckOffset:
    """The subscriber is done with every record below ``below``."""

    subscriber: Any
    below: int


@dataclass(slots=True)
class Unsubscribe:
    """The subscriber has gone; nothing is sent to it any more."""

    subscriber: Any


@dataclass(slots=True)
class ListCursors:
    """Tell ``asker`` about the cursors; answered by Answer with a list of CursorInfo."""

    asker: Any


@dataclass(slots=True)
class DeleteCursor:
    """Forget a cursor, durably; answered by Answer."""

    asker: Any
    cursor: str


LogEvent = Event | Subscribe | Fetch | AckOffset | Unsubscribe | ListCursors | DeleteCursor


# Instructions.


@dataclass(slots=True)
class Publish:
    """One response: the records ``first .. next - 1``, all committed on disk. Columns of equal length, maybe empty.

    ``watermark``: every record with a smaller timestamp is at a smaller offset than ``next``, late ones aside;
    MAX_TIMESTAMP only where nothing is left. ``acked`` is the cursor's durable ACK, and ``life``
    the number of its life (0 for a tail).
    """

    subscriber: Any
    first: int
    values: list[bytes]
    timestamps: list[int]
    watermark: int
    next: int
    acked: int
    life: int = 0


@dataclass(slots=True)
class EndSubscription:
    """The subscriber's call ends with ``error``."""

    subscriber: Any
    error: RequestError


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """A durable cursor: ``acked``, the offset below which it has ACKed all; ``end``, the log's next offset."""

    name: str
    acked: int
    end: int


@dataclass(slots=True)
class Answer:
    """The answer for ``asker``: the cursors asked for, or why there are none."""

    asker: Any
    cursors: list[CursorInfo]
    error: RequestError | None = None


LogInstruction = Instruction | Publish | EndSubscription | Answer
