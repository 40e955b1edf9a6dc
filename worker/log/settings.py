"""The configuration of a log: its identity, its retention and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.limits import MAX_RETAINED_BYTES
from millwheel.worker.messages import Parent

__all__ = ["DEAD_LETTER_RETENTION", "DEFAULT_RETENTION", "LogConfig", "LogRetention", "LogSettings"]


_SEGMENTS_PER_AGE: Final = 8
"""The open segment ends at the maximum age divided by this, so retention is that precise. The log's age is journaled
as often, if no other commit does it. So a takeover sets the age back by no more than that."""
_MIN_SEGMENT_AGE_US: Final = 1_000_000
"""The minimum for both periods, in microseconds."""


@dataclass(frozen=True, slots=True)
class LogRetention:
    """What a log without cursors keeps. 0: no limit. Only whole segments are dropped, so up to one more is kept."""

    stated: bool = field(default=False, kw_only=True)
    """Whether the stream's definition sets the retention. If so, it also applies beside cursors, for later
    subscribers. If not, records are dropped as soon as every cursor has ACKed them."""

    max_age: int = 0
    """Microseconds since the record was committed, counted while the log is served."""
    max_bytes: int = 0
    journal_age: int = field(init=False)
    """The age of the log must be journaled as often."""
    cut_age: int = field(init=False)
    """The age at which the open segment ends. 0: it does not end by age."""

    def __post_init__(self) -> None:
        journal_age = max(_MIN_SEGMENT_AGE_US, self.max_age // _SEGMENTS_PER_AGE)
        object.__setattr__(self, "journal_age", journal_age)
        object.__setattr__(self, "cut_age", min(journal_age, self.max_age))


DEFAULT_RETENTION: Final = LogRetention(max_age=3_600_000_000, max_bytes=256 << 20)
"""One hour and 256 MiB, whichever is reached first."""

DEAD_LETTER_RETENTION: Final = LogRetention(max_age=7 * 24 * 3_600_000_000, max_bytes=1 << 30, stated=True)
"""Seven days and 1 GiB, whichever is reached first: people must have time to read, mend and replay."""


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Limits and delays of a log's core. Times are in microseconds, sizes in bytes."""

    batch_bytes: int = 4 << 20
    """Approximate size of the records in one commit: a quarter of Cassandra's limit for one write."""
    segment_bytes: int = 1 << 20
    """Approximate size of the records in one segment row. A single record may be larger."""
    queue_bytes: int = 64 << 20
    """Maximum size of received and uncommitted records. Above it, records ahead of the watermark are refused (G13)."""
    memory_bytes: int = 64 << 20
    """Approximate size of committed records in memory. Above it, the least recently used stored segments go."""
    cap_bytes: int = 16 << 30
    """Maximum size of kept records. Above it, records ahead of the watermark are refused. From a quarter above it
    on, all records are refused (G13)."""
    retained_bytes: int = MAX_RETAINED_BYTES
    """The most that any retention keeps. It is below the cap, so only cursors can fill the log."""
    ack_delay: int = 50_000
    """How long an ACK waits for records to share an append with. After that it gets a separate append."""
    watermark_delay: int = 20_000
    """Delay after the last append before a new watermark is journaled without records, if subscribers wait for it."""
    checkpoint_entries: int = 5_000
    checkpoint_bytes: int = 32 << 20
    """Size of the journal above the truncation point that starts a new base. It bounds what a takeover replays."""
    flush_bytes: int = 8 << 20
    """Approximate size of segment rows in one write."""
    publish_records: int = 4_096
    """Maximum number of records of one response to a subscriber. A response costs both sides as much as some hundred
    records. It is below half of ``window``, so the next one is on its way while a program works on one."""
    publish_bytes: int = 1 << 20
    """Maximum size of one response to a subscriber. A single record may be larger."""
    window: int = 10_000
    """Default for the number of records sent beyond a cursor's last ACK."""
    reads: int = 8
    """Maximum number of segments that are read back at once."""

    def __post_init__(self) -> None:
        if self.cap_bytes < 4 * self.segment_bytes:
            raise ValueError(
                f"cap_bytes {self.cap_bytes:,} is below four segments of {self.segment_bytes:,}: "
                "ACKs free whole segments, so a smaller cap could refuse for ever"
            )


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The log's identity. Its watermark depends on all ``groups``."""

    stream: str
    incarnation: IncarnationId
    journal: str
    sequencer: int
    groups: frozenset[str]
    slack: Mapping[str, int] = field(default_factory=dict)
    """How far behind an injector's watermark the ids of its late records are kept, in microseconds (6.1.1)."""
    retention: LogRetention = DEFAULT_RETENTION
    settings: LogSettings = field(default_factory=LogSettings)
    deflates: bool = True
    """Whether the store may deflate entries: by the cluster's format when the log was opened."""
    keys: KeyInterval = field(default=ALL_KEYS, init=False)
    """All keys: a log has one interval."""

    @property
    def parents(self) -> tuple[Parent, ...]:
        """None: a log is not split or merged."""
        return ()
