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
    ListCursors,
    LogEffect,
    LogEvent,
    Publish,
    RetentionChanged,
    Start,
    Subscribe,
    SubscriberEffect,
    SubscriberEvent,
    Unsubscribe,
)
from millwheel.worker.log.settings import DEFAULT_RETENTION, LogConfig, LogRetention, LogSettings

__all__ = [
    "DEFAULT_RETENTION",
    "AckOffset",
    "CursorInfo",
    "CursorsAnswer",
    "DeleteCursor",
    "EndSubscription",
    "Fetch",
    "ListCursors",
    "LogConfig",
    "LogCore",
    "LogEffect",
    "LogEvent",
    "LogRetention",
    "LogSettings",
    "Publish",
    "RetentionChanged",
    "Start",
    "Subscribe",
    "SubscriberEffect",
    "SubscriberEvent",
    "Unsubscribe",
]
