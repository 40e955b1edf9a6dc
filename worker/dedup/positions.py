"""A receiver's state of one sequence of positions: marks, and the committed positions above them.

A position belongs to exactly one record, and a record has exactly one key at this consumer. The receiver's key range is
divided into *pieces*, normally one. Each piece has a mark. A position p of key k is known to be committed if

    p is in ``seen``,  or  in a range of k's piece,  or  below the mark of k's piece and not one of that piece's
    ``holes``.

Invariant: a fact may be forgotten only if another one implies it. So ``seen`` may lose positions below every mark, a
piece's ranges may lose those below its own mark, and nothing else is forgotten. All pieces share ``seen``, because a
committed position is committed for any key range. Holes are positions that one piece does *not* know to be committed,
so each piece has its own.

A *range* says: each record of the sequence in it that has a key of the piece is committed. It says nothing of the keys
outside, because their records went to other receivers in other deliveries. So each piece has its own ranges, and merged
pieces stay apart until their marks have passed the ranges in which they differ.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

from millwheel.model.deliveries import PositionIds
from millwheel.model.keys import KeyInterval
from millwheel.worker.dedup.pieces import PendingPositions, PositionPiece
from millwheel.worker.dedup.results import DeliveryVerdict

__all__ = ["PositionSource"]

_SLACK = 64
"""``seen`` is pruned when its size has doubled since the last pruning. So pruning costs O(1) per position."""


class PositionSource:
    """One sequence at one receiver. ``pieces`` are disjoint and sorted. Keys outside them are not admitted."""

    __slots__ = ("_prune_at", "_starts", "complete", "injector", "interval", "pending", "pieces", "seen", "sequence",
                 "top")  # fmt: skip

    def __init__(self, sequence: str, interval: KeyInterval, pieces: Sequence[PositionPiece], seen: set[int]) -> None:
        self.sequence = sequence
        self.interval = interval
        self.pieces = list(pieces)
        self.seen = seen
        ends = (one.stop - 1 for piece in pieces for one in piece.ranges)
        self.top = max([max(seen, default=-1), *ends])
        """No position above it is committed or pending."""
        self.pending = PendingPositions()
        self.injector = ""
        """The injector process that sends the sequence. Empty for a journal's sequence."""
        self._prune_at = _SLACK
        self._index()

    def admit(self) -> None:
        """Create pieces with mark 0 for all other keys: nothing of the sequence is committed for them."""
        gaps, at = [], self.interval.start
        for piece in self.pieces:
            if at < piece.interval.start:
                gaps.append(PositionPiece(KeyInterval(at, piece.interval.start)))
            if piece.interval.end is None:
                break
            at = piece.interval.end
        else:
            if self.interval.end is None or at < self.interval.end:
                gaps.append(PositionPiece(KeyInterval(at, self.interval.end)))
        self.pieces = sorted([*self.pieces, *gaps], key=lambda piece: piece.interval.start)
        self._index()

    def check(self, ids: PositionIds, keys: Sequence[bytes], verdict: DeliveryVerdict) -> None:
        """Check the positions. The pieces must cover the interval."""
        positions = ids.positions
        if not positions:
            verdict.all_fresh = True
            return
        pieces = self.pieces
        mark = pieces[0].mark if len(pieces) == 1 else max(piece.mark for piece in pieces)
        if ids.complete and self._check_range(range(positions[0], positions[-1] + 1), positions, mark, verdict):
            return
        lowest, highest = min(positions), max(positions)
        if lowest >= mark and self._take_all(positions, lowest, highest):
            verdict.all_fresh = True
        elif len(pieces) == 1 and not pieces[0].holes and highest < mark:
            self._check_below_mark(positions, range(lowest, highest + 1), verdict)
        else:
            self._check_each(positions, keys, verdict)

    def _check_range(self, whole: range, positions: Sequence[int], mark: int, verdict: DeliveryVerdict) -> bool:
        """Check a complete delivery at once. False: its records differ, or may, so each must be checked."""
        if whole.start <= self.top:
            if self._is_pending(whole, positions):
                return False
            if all(piece.knows(whole) for piece in self.pieces):
                verdict.duplicates = range(len(positions))
                return True
            if any(piece.ranges.overlaps(whole) for piece in self.pieces) or not self.seen.isdisjoint(positions):
                return False
        if whole.start < mark:
            return False
        self.pending.ranges.add(whole)
        self.top = max(self.top, whole.stop - 1)
        verdict.all_fresh, verdict.range = True, whole
        return True

    def _is_pending(self, whole: range, positions: Collection[int]) -> bool:
        """Whether some of ``positions``, which are within ``whole``, may be pending."""
        pending = self.pending
        return pending.ranges.overlaps(whole) or not pending.ids.isdisjoint(positions)

    def _take_all(self, positions: Sequence[int], lowest: int, highest: int) -> bool:
        distinct = set(positions)
        if len(distinct) != len(positions):
            return False
        if lowest <= self.top:
            whole = range(lowest, highest + 1)
            if self._is_pending(whole, distinct) or not distinct.isdisjoint(self.seen):
                return False
            if any(piece.ranges.overlaps(whole) for piece in self.pieces):
                return False
        self.pending.ids |= distinct
        self.top = max(self.top, highest)
        return True

    def _check_below_mark(self, positions: Sequence[int], whole: range, verdict: DeliveryVerdict) -> None:
        if self._is_pending(whole, positions):
            self._check_each(positions, (b"",) * len(positions), verdict)
        else:
            verdict.duplicates = range(len(positions))

    def _check_each(self, positions: Sequence[int], keys: Sequence[bytes], verdict: DeliveryVerdict) -> None:
        pending, pending_ranges, seen = self.pending.ids, self.pending.ranges, self.seen
        single = self.pieces[0] if len(self.pieces) == 1 else None
        fresh: list[int] = []
        duplicates: list[int] = []
        waiting: list[int] = []
        for index, position in enumerate(positions):
            if position in pending:
                waiting.append(index)
                continue
            piece = single or self._piece(keys[index])
            below = position < piece.mark
            if position in seen or (position not in piece.holes if below else position in piece.ranges):
                duplicates.append(index)
            elif position in pending_ranges:
                # Asked last: a pending range also has positions of records that were ACKed before, and are not in it.
                waiting.append(index)
            else:
                fresh.append(index)
                pending.add(position)
        self.top = max(self.top, max(positions))
        verdict.fresh, verdict.duplicates, verdict.waiting = fresh, duplicates, waiting

    def state_mark(self, mark: int, unacked: Sequence[int]) -> bool:
        """Apply the sender's mark to the whole interval. Returns whether that changed anything."""
        pieces = self.pieces
        if len(pieces) == 1 and mark <= pieces[0].mark and not pieces[0].holes and (mark <= self.top or not self.seen):
            return False
        open_ = set(unacked)
        changed = [piece.apply(mark, open_, self.seen) for piece in pieces]
        self.join_equal_pieces()
        self._prune()
        return any(changed)

    def commit(self, positions: Sequence[int]) -> None:
        """The pending positions are committed."""
        self.pending.settle(positions)
        self.remember(positions)

    def commit_ranges(self, parts: Sequence[range]) -> None:
        """Parts of pending ranges are committed."""
        self.pending.settle_ranges(parts)
        self.remember_ranges(parts)

    def remember_ranges(self, parts: Iterable[range]) -> None:
        """Each record at these positions that was due to this receiver is committed."""
        for part in parts:
            for piece in self.pieces:
                piece.remember(part)
            self.top = max(self.top, part.stop - 1)

    def remember(self, positions: Sequence[int]) -> None:
        """The positions are committed."""
        self.top = max(self.top, max(positions))
        if any(piece.holes for piece in self.pieces):
            for piece in self.pieces:
                piece.holes.difference_update(positions)
            mark = self._common_mark()
            positions = [position for position in positions if position >= mark]
        self.seen.update(positions)

    def restore(self, at: int, ranges: Iterable[range]) -> None:
        """Add the ranges that a snapshot has of piece number ``at``."""
        for one in ranges:
            self.pieces[at].ranges.add(one)
            self.top = max(self.top, one.stop - 1)

    def inherited_by(self, interval: KeyInterval) -> list[PositionPiece]:
        """Copies of the pieces, cut to ``interval``: the start of a child of the receiver."""
        found = []
        for piece in self.pieces:
            common = piece.interval.intersection(interval)
            if common is not None:
                found.append(PositionPiece(common, piece.mark, piece.holes, piece.ranges))
        return found

    def _prune(self) -> None:
        mark = self._common_mark()
        if mark > self.top:
            self.seen.clear()
        elif len(self.seen) >= self._prune_at:
            self.seen = {position for position in self.seen if position >= mark}
            self._prune_at = 2 * len(self.seen) + _SLACK

    def _common_mark(self) -> int:
        """Below it the marks imply everything in ``seen``. It is 0 while the pieces do not cover the interval."""
        return min(piece.mark for piece in self.pieces) if self.complete else 0

    def join_equal_pieces(self) -> None:
        """Make one of neighbours whose facts are equal. So cuts that are merged back leave nothing behind (G13)."""
        if len(self.pieces) == 1:
            return
        joined: list[PositionPiece] = []
        for piece in self.pieces:
            last = joined[-1] if joined else None
            if last is not None and last.interval.end == piece.interval.start and piece.agrees_with(last):
                keys = KeyInterval(last.interval.start, piece.interval.end)
                joined[-1] = PositionPiece(keys, last.mark, last.holes, last.ranges)
            else:
                joined.append(piece)
        if len(joined) < len(self.pieces):
            self.pieces = joined
            self._index()

    def _index(self) -> None:
        """The pieces have changed."""
        self._starts = [piece.interval.start for piece in self.pieces]
        at: bytes | None = self.interval.start
        for piece in self.pieces:
            if at is None or piece.interval.start > at:
                break
            at = piece.interval.end
        self.complete = at is None or (self.interval.end is not None and at >= self.interval.end)
        """Whether the pieces cover the whole interval."""

    def _piece(self, key: bytes) -> PositionPiece:
        return self.pieces[bisect_right(self._starts, key) - 1]
