"""Messages between a log's core and the service for its subscribers, in addition to the messages of every core.

A *subscriber* is any object that the driver chooses for one ``Subscribe`` call. The core distinguishes subscribers by
identity, and returns them in its effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from millwheel.model.letters import LetterState
from millwheel.model.traces import RecordTraces
from millwheel.rpc.failures import RequestError
from millwheel.worker.log.letters import LetterChange
from millwheel.worker.log.settings import LogRetention
from millwheel.worker.messages import (
    Accepted,
    Appended,
    CatalogChanged,
    Delivery,
    Deposed,
    GroupWatermarks,
    Opened,
    OpenFailed,
    OwnerEffect,
    PartsMissing,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    SequenceChecked,
    SnapshotEvent,
    Started,
    StatesFlushed,
    StatesRead,
    Tick,
)

__all__ = [
    "AckOffset",
    "CursorInfo",
    "CursorsAnswer",
    "DeleteCursor",
    "EndSubscription",
    "Fetch",
    "LetterInfo",
    "LettersAnswer",
    "ListCursors",
    "ListLetters",
    "LogAnswer",
    "LogEffect",
    "LogEvent",
    "MarkLetters",
    "Publish",
    "RetentionChanged",
    "Start",
    "Subscribe",
    "SubscriberEffect",
    "SubscriberEvent",
    "Unsubscribe",
]


class Start(Enum):
    """Where a new cursor or a tail starts."""

    OLDEST = "oldest"
    NOW = "now"


# Events.


@dataclass(slots=True)
class Subscribe:
    """A new subscriber. ``cursor`` empty: a tail, which stores nothing.

    ``resume``: the subscriber received everything below this offset before, in an earlier call. None: a first call. It
    applies to the ``life`` of the cursor that a ``Publish`` named. 0: to any life. ``name`` is the same in every call
    of one subscriber. So a subscriber that lost the cursor to another one does not take it back. ``window``: maximum
    number of records sent beyond the cursor's last ACK. Only its fetches limit a tail.
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
    """The subscriber requests ``responses`` more responses."""

    subscriber: Any
    responses: int = 1


@dataclass(slots=True)
class AckOffset:
    """The subscriber has processed every record below ``below``."""

    subscriber: Any
    below: int


@dataclass(slots=True)
class Unsubscribe:
    """The subscriber's call has ended. Nothing more is sent to it."""

    subscriber: Any


@dataclass(slots=True)
class ListCursors:
    """Return the cursors to ``asker``. Answer ``CursorsAnswer`` with a list of ``CursorInfo``."""

    asker: Any


@dataclass(slots=True)
class DeleteCursor:
    """Delete a cursor durably. Answer ``CursorsAnswer``."""

    asker: Any
    cursor: str


@dataclass(slots=True)
class ListLetters:
    """Return what people have done with dead letters to ``asker``. Answer ``LettersAnswer`` with ``marks``."""

    asker: Any


@dataclass(slots=True)
class MarkLetters:
    """Change dead letters durably. Answer ``LettersAnswer``. A letter in another state is left alone."""

    asker: Any
    changes: list[LetterChange]


@dataclass(slots=True)
class RetentionChanged:
    """An update of the topology has given the stream another retention."""

    retention: LogRetention


SubscriberEvent = Subscribe | Fetch | AckOffset | Unsubscribe | ListCursors | DeleteCursor | ListLetters | MarkLetters

LogEvent = (
    Started
    | Delivery
    | Opened
    | OpenFailed
    | Accepted
    | Appended
    | Deposed
    | GroupWatermarks
    | CatalogChanged
    | RetentionChanged
    | StatesRead
    | StatesFlushed
    | PartsWritten
    | PartsRead
    | PartsMissing
    | SequenceChecked
    | PrepareRelease
    | SnapshotEvent
    | Tick
    | SubscriberEvent
)


# Effects.


@dataclass(slots=True)
class Publish:
    """One response: the committed records ``first .. next - 1``. Columns of equal length, maybe empty.

    ``watermark``: every record with a smaller timestamp has an offset below ``next``, except late records. It is
    MAX_TIMESTAMP only if no records are left to read. ``acked`` is the cursor's durable ACK. ``life`` is the number of
    its life (0 for a tail). ``end`` is the offset after the log's last committed record. ``traces``: of sampled
    records.
    """

    subscriber: Any
    first: int
    values: Sequence[bytes]
    timestamps: list[int]
    watermark: int
    next: int
    acked: int
    life: int
    end: int
    traces: RecordTraces | None = None


@dataclass(slots=True)
class EndSubscription:
    """End the subscriber's call with ``error``."""

    subscriber: Any
    error: RequestError


@dataclass(frozen=True, slots=True)
class CursorInfo:
    """A durable cursor: ``acked``, the offset below which everything is ACKed, and ``end``, the log's next offset."""

    name: str
    acked: int
    end: int


@dataclass(slots=True)
class LogAnswer:
    """The answer to ``asker``, an operator's request."""

    asker: Any


@dataclass(slots=True)
class CursorsAnswer(LogAnswer):
    """The requested cursors, or an error."""

    cursors: list[CursorInfo]
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class LetterInfo:
    """The kept letters ``start .. end - 1``: the runs of those that do not wait, and the last batch that has begun."""

    start: int
    end: int
    batch: int
    runs: list[tuple[LetterState, int, int]]


@dataclass(slots=True)
class LettersAnswer(LogAnswer):
    """The ``marks`` that were requested, or an error. Neither: the requested change is durable."""

    marks: LetterInfo | None = None
    error: RequestError | None = None


SubscriberEffect = Publish | EndSubscription | CursorsAnswer | LettersAnswer
"""Messages to subscribers and operators."""

LogEffect = OwnerEffect | SubscriberEffect
