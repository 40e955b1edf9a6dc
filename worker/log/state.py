"""What a log's core knows: the soft state that equals a takeover's scan (G12), and what is on its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millwheel.core.keys import ALL_KEYS
from millwheel.core.time import MIN_TIMESTAMP
from millwheel.core.watermarks import InputWatermark, MinTracker
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Dedup, Verdict
from millwheel.worker.log.cursors import Cursors
from millwheel.worker.log.segments import Records
from millwheel.worker.log.settings import LogConfig
from millwheel.worker.messages import Delivery

__all__ = ["Counts", "Intake", "LogState", "Piece", "Receipt"]


class Receipt:
    """What is still to be committed of one delivery before it is ACKed; ``excluded`` was refused, to be sent again."""

    __slots__ = ("delivery", "excluded", "open")

    def __init__(self, delivery: Delivery, excluded: Sequence[int]) -> None:
        self.delivery = delivery
        self.excluded = excluded
        self.open = 0


class Piece:
    """Fresh records of one delivery that are committed together. ``indexes`` None: all fresh ones of the verdict."""

    __slots__ = ("held", "indexes", "receipt", "size", "timestamps", "values", "verdict")

    def __init__(
        self,
        receipt: Receipt,
        verdict: Verdict,
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
        """What it holds the watermark at."""
        receipt.open += 1


class Intake:
    """Received and uncommitted: the line, and what the commit in flight took of it. ``pending``: its timestamps."""

    def __init__(self) -> None:
        self.line: deque[Piece] = deque()
        self.pending = MinTracker()
        self.bytes = 0

    def put(self, piece: Piece) -> None:
        """Put a piece in line; it holds the watermark from now on."""
        self.line.append(piece)
        self.pending.add(piece.held)
        self.bytes += piece.size

    def take(self, limit: int) -> list[Piece]:
        """The next pieces, one at least if there is one, up to ``limit`` bytes."""
        taken: list[Piece] = []
        size = 0
        while self.line and (not taken or size + self.line[0].size <= limit):
            piece = self.line.popleft()
            taken.append(piece)
            size += piece.size
        return taken

    def settle(self, piece: Piece) -> bool:
        """The piece is committed; returns whether that was the last of its delivery."""
        self.pending.remove(piece.held)
        self.bytes -= piece.size
        piece.receipt.open -= 1
        return piece.receipt.open == 0


@dataclass(slots=True)
class Counts:
    """Totals since the log began; they are journaled with the commits that they count."""

    records: int = 0
    duplicates: int = 0
    late: int = 0

    def add(self, counts: tuple[int, int, int]) -> None:
        """Count one commit."""
        self.records += counts[0]
        self.duplicates += counts[1]
        self.late += counts[2]


class LogState:
    """The data that the parts of a log's core share."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.settings = config.settings
        self.inputs = InputWatermark(config.senders)
        self.intake = Intake()
        self.dedup = Dedup(ALL_KEYS, config.journal)
        self.segments: dict[str, tuple[PartId, ...]] = {}
        """Stored id segments of the dedup, by name."""
        self.slack: Mapping[str, int] = config.slack
        """By sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""
        self.records = Records()
        self.cursors = Cursors()
        self.counts = Counts()
        self.watermark: int = MIN_TIMESTAMP
        """Input and output watermark in one: what is received and uncommitted holds it. Monotone."""
        self.assured: int = MIN_TIMESTAMP
        """The watermark of the last committed entry: when that was heard of, nobody else had the journal."""
        self.clock = 0
        """What this owner's steady clock shows, by which delays are measured."""
        self.appended_at = 0
        """When the last entry was committed, by that clock."""
        self.age = 0
        """For how long the log has been served, by all of its owners, in microseconds from a beginning that does not
        matter: records grow old by it, and not by wall clocks, which are set. It is journaled, and monotone."""
        self.journaled_age = 0
        """That of the last committed entry, from where a successor goes on."""
        self.committed = 0
        self.floor = 0
        self.parts: tuple[PartId, ...] = ()
        self.journal_bytes = 0
        """Of the entries above the newest base, about."""

    def look_at_clock(self, now: int) -> None:
        """The steady clock shows ``now``: the log has been served for so much longer."""
        self.age += now - self.clock
        self.clock = now

    def clock_at(self, age: int) -> int:
        """What the steady clock shows at that ``age``."""
        return self.clock + age - self.age
