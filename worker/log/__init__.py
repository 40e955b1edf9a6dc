"""The stream log: the system consumer that keeps a stream's records for subscribers (section 4.3).

A log is one journal and one pure core, :class:`LogCore`, which is driven like an interval's core. It receives
deliveries as every consumer does, drops duplicates, and assigns consecutive offsets to the records in order of arrival.
Subscribers read them through durable, named cursors, or as a tail without a cursor.
"""

from millwheel.worker.log.core import LogCore, LogPhase
from millwheel.worker.log.messages import (
    AckOffset,
    CursorInfo,
    CursorsAnswer,
    DeleteCursor,
    EndSubscription,
    Fetch,
    ListCursors,
    LogEvent,
    LogInstruction,
    Publish,
    Start,
    Subscribe,
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
    "LogEvent",
    "LogInstruction",
    "LogPhase",
    "LogRetention",
    "LogSettings",
    "Publish",
    "Start",
    "Subscribe",
    "Unsubscribe",
]
