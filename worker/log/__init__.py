"""The stream log: the system consumer that keeps a stream's records for subscribers (section 4.3).

A log is one journal and one pure core, :class:`LogCore`, which is driven as every core is
(:mod:`millwheel.model.core_protocol`). It receives
deliveries as every consumer does, drops duplicates, and assigns consecutive offsets to the records in order of arrival.
Subscribers read them through durable, named cursors, or as a tail without a cursor.
"""

from millwheel.worker.log.core import LogCore
from millwheel.worker.log.messages import (
    AckOffset,
    CursorInfo,
    CursorsAnswer,
    DeleteCursor,
    EndSubscription,
    Fetch,
    LettersAnswer,
    ListCursors,
    ListLetters,
    LogEffect,
    LogEvent,
    MarkLetters,
    Publish,
    RetentionChanged,
    Start,
    Subscribe,
    SubscriberEffect,
    SubscriberEvent,
    Unsubscribe,
)
from millwheel.worker.log.settings import DEAD_LETTER_RETENTION, DEFAULT_RETENTION, LogConfig, LogRetention, LogSettings

__all__ = [
    "DEAD_LETTER_RETENTION",
    "DEFAULT_RETENTION",
    "AckOffset",
    "CursorInfo",
    "CursorsAnswer",
    "DeleteCursor",
    "EndSubscription",
    "Fetch",
    "LettersAnswer",
    "ListCursors",
    "ListLetters",
    "LogConfig",
    "LogCore",
    "LogEffect",
    "LogEvent",
    "LogRetention",
    "LogSettings",
    "MarkLetters",
    "Publish",
    "RetentionChanged",
    "Start",
    "Subscribe",
    "SubscriberEffect",
    "SubscriberEvent",
    "Unsubscribe",
]
