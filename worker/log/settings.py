"""Who a log is, what it keeps, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millwheel.core.keys import ALL_KEYS, KeyInterval

__all__ = ["DEFAULT_RETENTION", "LogConfig", "LogRetention", "LogSettings"]


@dataclass(frozen=True, slots=True)
class LogRetention:
    """What a log without cursors keeps; 0 sets no bound. Whole segments go, so up to one segment more is kept."""

    stated: bool = field(default=False, kw_only=True)
    """Whether the stream states it. Then it is kept beside cursors, too, for subscribers that come later; else records
    go as soon as every cursor has ACKed them."""

    max_age: int = 0
    """Microseconds of wall time since the record was committed."""
    max_bytes: int = 0


DEFAULT_RETENTION: Final = LogRetention(max_age=3_600_000_000, max_bytes=256 << 20)
"""One hour and 256 MiB, whichever is reached first."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Bounds and delays of a log's core. Times are microseconds, sizes bytes."""

    batch_bytes: int = 4 << 20
    """Records in one commit, about: a quarter of what Cassandra takes in one write."""
    segment_bytes: int = 1 << 20
    """Records in one segment row, about (a single record may be as large)."""
    queue_bytes: int = 64 << 20
    """Received and uncommitted, at most; beyond it, records ahead of the watermark are refused (G13)."""
    memory_bytes: int = 64 << 20
    """Committed records kept in memory, about. Beyond it, stored segments leave, those used longest ago first."""
    cap_bytes: int = 16 << 30
    """Records kept. Beyond it, those ahead of the watermark are refused; a quarter beyond it, all are (G13)."""
    ack_delay: int = 50_000
    """How long an ACK waits for records to be journaled with before it gets an append of its own."""
    watermark_delay: int = 20_000
    """How long after the last append a watermark that subscribers wait for gets one of its own, if no record comes."""
    checkpoint_entries: int = 5_000
    checkpoint_bytes: int = 32 << 20
    """Journal beyond the floor after which the base is written anew: the most that a takeover replays."""
    flush_bytes: int = 8 << 20
    """Segment rows written in one go, about."""
    publish_records: int = 1_000
    publish_bytes: int = 1 << 20
    """One response to a subscriber, at most (a single record may be as large)."""
    window: int = 10_000
    """Records sent beyond a cursor's last ACK where the subscriber does not say."""
    reads: int = 8
    """Segments read back at once, at most."""

    def __post_init__(self) -> None:
        if self.cap_bytes < 4 * self.segment_bytes:
            raise ValueError(
                f"cap_bytes {self.cap_bytes:,} is below four segments of {self.segment_bytes:,}: "
                "ACKs free whole segments, so a smaller cap could refuse for ever"
            )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Who the log is. ``computation`` is its incarnation id; ``senders`` are all that its watermark follows."""

    stream: str
    computation: str
    journal: str
    sequencer: int
    senders: frozenset[str]
    slack: Mapping[str, int] = field(default_factory=dict)
    """By sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""
    retention: LogRetention = DEFAULT_RETENTION
    settings: LogSettings = field(default_factory=LogSettings)

    @property
    def keys(self) -> KeyInterval:
        """A log has one interval, of every key."""
        return ALL_KEYS
