"""What is known of a sequence of positions for the keys of one piece, and which positions are pending (6.1.1)."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.model.keys import KeyInterval
from millwheel.worker.dedup.ranges import Ranges
from millwheel.worker.dedup.results import DedupError, PendingIds

__all__ = ["PendingPositions", "PositionPiece"]


class PositionPiece:
    """The keys of ``interval``: all positions below ``mark`` are committed, except ``holes``, and those in ``ranges``.

    Invariant: no hole is in a range, and the ranges have no position below the mark.
    """

    __slots__ = ("holes", "interval", "mark", "ranges")

    def __init__(
        self, interval: KeyInterval, mark: int = 0, holes: Iterable[int] = (), ranges: Iterable[range] = ()
    ) -> None:
        self.interval = interval
        self.mark = mark
        self.holes: set[int] = set(holes)
        self.ranges = Ranges(ranges)

    def apply(self, mark: int, unacked: set[int], seen: set[int]) -> bool:
        """Apply the sender's mark: positions below it are ACKed, except ``unacked``. Returns whether anything
        changed."""
        if mark > self.mark:
            old, holes, ranges = self.mark, self.holes, self.ranges
            self.holes = {
                h for h in unacked if h < mark and (h in holes if h < old else not (h in seen or h in ranges))
            }
            self.mark = mark
            ranges.drop_below(mark)
            return True
        if not self.holes:
            return False
        filled = {h for h in self.holes if h < mark and h not in unacked}
        self.holes -= filled
        return bool(filled)

    def remember(self, positions: range) -> None:
        """Each record at ``positions`` that has a key of this piece is committed."""
        if self.holes:
            self.holes = {hole for hole in self.holes if hole not in positions}
        if positions.stop > self.mark:
            self.ranges.add(range(max(positions.start, self.mark), positions.stop))

    def knows(self, positions: range) -> bool:
        """Whether each record at ``positions`` that has a key of this piece is known to be committed. False may also
        mean that several facts say so."""
        return self.ranges.covers(positions) or (positions.stop <= self.mark and not self.holes)

    def agrees_with(self, other: PositionPiece) -> bool:
        """Whether the facts about the keys of both pieces are equal."""
        return self.mark == other.mark and self.holes == other.holes and self.ranges == other.ranges


class PendingPositions(PendingIds[int]):
    """Pending positions: single ones, and the ranges of deliveries of which all records were fresh.

    Invariant: no pending range has a position that is pending by itself, and no two have a position in common.
    """

    __slots__ = ("ranges",)

    def __init__(self) -> None:
        super().__init__()
        self.ranges = Ranges()

    def __bool__(self) -> bool:
        return bool(self.ids or self.ranges)

    def settle_ranges(self, parts: Iterable[range]) -> None:
        """Remove parts of pending ranges.

        Raises:
            DedupError: A part was not pending.
        """
        for part in parts:
            if not self.ranges.covers(part):
                raise DedupError(f"{part} was settled, and was not pending: a record of it was taken twice")
            self.ranges.remove(part)
