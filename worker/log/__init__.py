"""The stream log: the system consumer that keeps a stream's records for subscribers (section 4.3; design §9).

A log is one journal and one pure core, :class:`LogCore`, driven as an interval's core is. It takes deliveries like
any consumer, drops duplicates, and gives the records consecutive offsets in the order of their arrival. Subscribers
read them from durable, named cursors, or as a tail without one.
"""

from millwheel.worker.log.core import LogCore, Phase
from millwheel.worker.log.messages import (
    AckOffset,
    Answer,
    CursorInfo,
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
    "Answer",
    "CursorInfo",
    "DeleteCursor",
    "EndSubscription",
    "Fetch",
    "ListCursors",
    "LogConfig",
    "LogCore",
    "LogEvent",
    "LogInstruction",
    "LogRetention",
    "LogSettings",
    "Phase",
    "Publish",
    "Start",
    "Subscribe",
    "Unsubscribe",
]
