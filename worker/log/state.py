"""The state of a log's core: the cached state that a takeover would read (G12), and uncommitted records."""

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
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.messages import Delivery

__all__ = ["FreshRecords", "LogCounts", "LogIntake", "LogReceipt", "LogState"]


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
        self.line: deque[FreshRecords] = deque()
        self.pending = MinTracker()
        self.bytes = 0

    def put(self, piece: FreshRecords) -> None:
        """Queue a piece. It holds the watermark from now on."""
        self.line.append(piece)
        self.pending.add(piece.held)
        self.bytes += piece.size

    def take(self, limit: int) -> list[FreshRecords]:
        """Remove the next pieces from the queue, up to ``limit`` bytes but at least one."""
        taken: list[FreshRecords] = []
        size = 0
        while self.line and (not taken or size + self.line[0].size <= limit):
            piece = self.line.popleft()
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


class LogState:
    """The data that the parts of a log's core share."""

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
        self.watermark: int = MIN_TIMESTAMP
        """Input and output watermark in one. Uncommitted records hold it. Monotone."""
        self.assured: int = MIN_TIMESTAMP
        """The watermark of the last committed entry. At its acknowledgement, no other owner had the journal."""
        self.clock = 0
        """The time on this owner's steady clock, in microseconds. Delays are measured with it."""
        self.appended_at = 0
        """When the last entry was committed, on that clock."""
        self.age = 0
        """How long the log has been served by all its owners, in microseconds from an arbitrary start. Records age
        by it, not by wall clocks, which can be reset. It is journaled and monotone."""
        self.journaled_age = 0
        """The ``age`` in the last committed entry. A successor continues from it."""
        self.committed = 0
        self.floor = 0
        self.parts: tuple[PartId, ...] = ()
        self.journal_bytes = 0
        """Approximate bytes of the entries above the newest base."""

    def look_at_clock(self, now: int) -> None:
        """The steady clock shows ``now``: add the elapsed time to ``age``."""
        self.age += now - self.clock
        self.clock = now

    def clock_at(self, age: int) -> int:
        """The time on the steady clock at the given ``age``."""
        return self.clock + age - self.age
