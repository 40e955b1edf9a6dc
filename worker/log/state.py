"""The data of a log's core: the cached state that a takeover would read (G12), and uncommitted records."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark, MinTracker
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Dedup, DeliveryVerdict
from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.segments import Records
from millwheel.worker.log.settings import LogConfig, LogSettings
from millwheel.worker.messages import DeleteEntries, DeleteParts, Delivery, OwnerEffect

__all__ = ["FreshRecords", "LogBase", "LogClock", "LogCounts", "LogIntake", "LogJournal", "LogReceipt", "LogState"]


class LogReceipt:
    """The uncommitted records of one delivery. ``excluded`` records were refused, and the sender repeats them."""

    __slots__ = ("delivery", "excluded", "open")

    def __init__(self, delivery: Delivery, excluded: Sequence[int]) -> None:
        self.delivery = delivery
        self.excluded = excluded
        self.open = 0


class FreshRecords:
    """Fresh records of one delivery that are committed together. ``indexes`` None: all fresh records of the verdict."""

    __slots__ = ("held", "indexes", "receipt", "size", "timestamps", "values", "verdict")

    def __init__(
        self,
        receipt: LogReceipt,
        verdict: DeliveryVerdict,
        indexes: Sequence[int] | None,
        values: list[bytes],
        timestamps: list[int],
        size: int,
    ) -> None:
        self.receipt = receipt
        self.verdict = verdict
        self.indexes = indexes
        self.values = values
        self.timestamps = timestamps
        self.size = size
        self.held = min(timestamps)
        """The watermark that these records hold."""
        receipt.open += 1


class LogIntake:
    """Received and uncommitted records: the queue, and those of the commit in flight. ``pending``: their timestamps."""

    def __init__(self) -> None:
        self.queue: deque[FreshRecords] = deque()
        self.pending = MinTracker()
        self.bytes = 0

    def put(self, piece: FreshRecords) -> None:
        """Queue a piece. It holds the watermark from now on."""
        self.queue.append(piece)
        self.pending.add(piece.held)
        self.bytes += piece.size

    def take(self, limit: int) -> list[FreshRecords]:
        """Remove the next pieces from the queue, up to ``limit`` bytes but at least one."""
        taken: list[FreshRecords] = []
        size = 0
        while self.queue and (not taken or size + self.queue[0].size <= limit):
            piece = self.queue.popleft()
            taken.append(piece)
            size += piece.size
        return taken

    def settle(self, piece: FreshRecords) -> bool:
        """The piece is committed. Returns whether it was the last of its delivery."""
        self.pending.remove(piece.held)
        self.bytes -= piece.size
        piece.receipt.open -= 1
        return piece.receipt.open == 0


@dataclass(slots=True)
class LogClock:
    """The owner's steady clock, and the log's age. Times are in microseconds."""

    now: int = 0
    """The time at the last event. Delays are measured with it."""
    appended_at: int = 0
    """When the last entry was committed."""
    age: int = 0
    """How long the log has been served by all its owners, from an arbitrary start. Records age by it, not by wall
    clocks, which can be reset. It is journaled and monotone."""
    journaled_age: int = 0
    """The ``age`` in the last committed entry. A successor continues from it."""

    def look(self, now: int) -> None:
        """The steady clock shows ``now``: add the elapsed time to ``age``."""
        self.age += now - self.now
        self.now = now

    def at(self, age: int) -> int:
        """The time on the steady clock at the given ``age``."""
        return self.now + age - self.age


@dataclass(slots=True)
class LogCounts:
    """Totals since the log was created. Each commit journals its own counts."""

    records: int = 0
    duplicates: int = 0
    late: int = 0

    def add(self, counts: tuple[int, int, int]) -> None:
        """Add the counts of one commit."""
        self.records += counts[0]
        self.duplicates += counts[1]
        self.late += counts[2]


@dataclass(frozen=True, slots=True)
class LogBase:
    """The parts of a base that was captured at a commit."""

    commit: int
    parts: tuple[PartId, ...]


class LogJournal:
    """The truncation point and the base parts of the journal. One new base at a time is on its way into the head.

    Invariant: the truncation point moves only in an append, and to a commit n for which both conditions hold. (a) The
    rows of all segments closed up to n are acknowledged, and the open segment has no record of a commit up to n. (b)
    Base parts captured at n are acknowledged and named in the same append. For (a), the entry of a commit at which a
    base is captured ends the open segment.
    """

    def __init__(self) -> None:
        self.truncation_point = 0
        self.parts: tuple[PartId, ...] = ()
        self.bytes = 0
        """Approximate bytes of the entries above the newest base."""
        self.writing: LogBase | None = None
        """The base whose parts are being written."""
        self.written: LogBase | None = None
        """The newest acknowledged base that no append has named yet."""
        self._named: LogBase | None = None
        """The base that the append in flight names."""
        self.collected: list[PartId] = []
        """Parts of collected id segments, to be deleted with the next base."""

    def needs_base(self, committed: int, settings: LogSettings) -> bool:
        """Whether to capture a base at the commit that is being sealed."""
        if self.writing is not None or self.written is not None or self._named is not None:
            return False
        long = committed - self.truncation_point >= settings.checkpoint_entries
        return long or self.bytes >= settings.checkpoint_bytes

    def next_head(self, records: Records) -> tuple[int, tuple[PartId, ...]]:
        """The truncation point and base parts for the next append."""
        base = self.written
        if base is not None and records.covered(base.commit):
            self._named, self.written = base, None
        if self._named is not None:
            return self._named.commit, self._named.parts
        return self.truncation_point, self.parts

    def head_appended(self, journal: str) -> list[OwnerEffect]:
        """The append that named them is committed: delete everything below."""
        named, self._named = self._named, None
        if named is None:
            return []
        gone = sorted({*self.parts, *self.collected}.difference(named.parts))
        self.collected = []
        self.truncation_point, self.parts = named.commit, named.parts
        out: list[OwnerEffect] = [DeleteEntries(journal, self.truncation_point + 1)]
        if gone:
            out.append(DeleteParts(journal, gone))
        return out


class LogState:
    """The owners of a log's data, and the facts that have no other owner."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.settings = config.settings
        self.inputs = InputWatermark(config.senders)
        self.intake = LogIntake()
        self.dedup = Dedup(ALL_KEYS, config.journal)
        self.segments: dict[str, tuple[PartId, ...]] = {}
        """Stored id segments of ``dedup``, by name."""
        self.slack: Mapping[str, int] = config.slack
        """How far behind an injector's watermark the ids of its late records are kept, in microseconds (6.1.1)."""
        self.records = Records()
        self.cursors = Cursors()
        self.counts = LogCounts()
        self.clock = LogClock()
        self.journal = LogJournal()
        self.committed = 0
        self.watermark: int = MIN_TIMESTAMP
        """Input and output watermark in one. Uncommitted records hold it. Monotone."""
        self.assured: int = MIN_TIMESTAMP
        """The watermark of the last committed entry. At its acknowledgement, no other owner had the journal."""
