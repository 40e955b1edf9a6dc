"""A receiver's state of one sequence of positions: marks, and the committed positions above them.

A position belongs to exactly one record, and a record has exactly one key at this consumer. The receiver's key range is
divided into *pieces*, normally one. Each piece has a mark. A position p of key k is known to be committed if

    p is in ``seen``,  or  p is below the mark of k's piece and not one of that piece's ``holes``.

Invariant: a fact may be forgotten only if the other one implies it. So ``seen`` may lose positions below every mark,
and nothing else. All pieces share ``seen``, because a committed position is committed for any key range. Holes are
positions that one piece does *not* know to be committed, so each piece has its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from millwheel.model.deliveries import PositionIds
from millwheel.model.keys import KeyInterval
from millwheel.worker.dedup.results import DeliveryVerdict, PendingIds

__all__ = ["PositionRange", "PositionSource"]

_SLACK = 64
"""``seen`` is pruned when its size has doubled since the last pruning. So pruning costs O(1) per position."""


class PositionRange:
    """The keys of ``interval``: all positions below ``mark`` are committed, except ``holes``."""

    __slots__ = ("holes", "interval", "mark")

    def __init__(self, interval: KeyInterval, mark: int = 0, holes: Iterable[int] = ()) -> None:
        self.interval = interval
        self.mark = mark
        self.holes: set[int] = set(holes)

    def apply(self, mark: int, unacked: set[int], seen: set[int]) -> bool:
        """Apply the sender's mark: positions below it are ACKed, except ``unacked``. Returns whether anything
        changed."""
        if mark > self.mark:
            old, holes = self.mark, self.holes
            self.holes = {h for h in unacked if h < mark and (h in holes if h < old else h not in seen)}
            self.mark = mark
            return True
        if not self.holes:
            return False
        filled = {h for h in self.holes if h < mark and h not in unacked}
        self.holes -= filled
        return bool(filled)


class PositionSource:
    """One sequence at one receiver. ``pieces`` are disjoint and sorted. Keys outside them are not admitted."""

    __slots__ = ("_prune_at", "_starts", "complete", "interval", "origin", "pending", "pieces", "seen", "sequence",
                 "top")  # fmt: skip

    def __init__(self, sequence: str, interval: KeyInterval, pieces: Sequence[PositionRange], seen: set[int]) -> None:
        self.sequence = sequence
        self.interval = interval
        self.pieces = list(pieces)
        self.seen = seen
        self.top = max(seen, default=-1)
        """No position above it is committed or pending."""
        self.pending: PendingIds[int] = PendingIds()
        self.origin = ""
        """The injector process that sends the sequence. Empty for a journal's sequence."""
        self._prune_at = _SLACK
        self._index()

    def admit(self) -> None:
        """Create pieces with mark 0 for all other keys: nothing of the sequence is committed for them."""
        gaps, at = [], self.interval.start
        for piece in self.pieces:
            if at < piece.interval.start:
                gaps.append(PositionRange(KeyInterval(at, piece.interval.start)))
            if piece.interval.end is None:
                break
            at = piece.interval.end
        else:
            if self.interval.end is None or at < self.interval.end:
                gaps.append(PositionRange(KeyInterval(at, self.interval.end)))
        self.pieces = sorted([*self.pieces, *gaps], key=lambda piece: piece.interval.start)
        self._index()

    def check(self, ids: PositionIds, keys: Sequence[bytes], verdict: DeliveryVerdict) -> None:
        """Check the positions. The pieces must cover the interval."""
        positions = ids.positions
        if not positions:
            verdict.all_fresh = True
            return
        pieces = self.pieces
        lowest = min(positions)
        mark = pieces[0].mark if len(pieces) == 1 else max(piece.mark for piece in pieces)
        if lowest >= mark and self._take_all(positions, lowest):
            verdict.all_fresh = True
        elif len(pieces) == 1 and not pieces[0].holes and max(positions) < mark:
            self._check_below_mark(positions, verdict)
        else:
            self._check_each(positions, keys, verdict)

    def _take_all(self, positions: Sequence[int], lowest: int) -> bool:
        distinct = set(positions)
        if len(distinct) != len(positions):
            return False
        pending = self.pending.ids
        if lowest <= self.top and not (distinct.isdisjoint(pending) and distinct.isdisjoint(self.seen)):
            return False
        pending |= distinct
        self.top = max(self.top, max(positions))
        return True

    def _check_below_mark(self, positions: Sequence[int], verdict: DeliveryVerdict) -> None:
        if self.pending.ids.isdisjoint(positions):
            verdict.duplicates = range(len(positions))
        else:
            self._check_each(positions, (b"",) * len(positions), verdict)

    def _check_each(self, positions: Sequence[int], keys: Sequence[bytes], verdict: DeliveryVerdict) -> None:
        pending, seen = self.pending.ids, self.seen
        single = self.pieces[0] if len(self.pieces) == 1 else None
        fresh: list[int] = []
        duplicates: list[int] = []
        waiting: list[int] = []
        for index, position in enumerate(positions):
            if position in pending:
                waiting.append(index)
                continue
            piece = single or self._piece(keys[index])
            if position in seen or (position < piece.mark and position not in piece.holes):
                duplicates.append(index)
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
        news = [piece.apply(mark, open_, self.seen) for piece in pieces]
        self._coalesce()
        self._prune()
        return any(news)

    def commit(self, positions: Sequence[int]) -> None:
        """The pending positions are committed."""
        self.pending.settle(positions)
        self.remember(positions)

    def remember(self, positions: Sequence[int]) -> None:
        """The positions are committed."""
        self.top = max(self.top, max(positions))
        if any(piece.holes for piece in self.pieces):
            for piece in self.pieces:
                piece.holes.difference_update(positions)
            mark = self._common_mark()
            positions = [position for position in positions if position >= mark]
        self.seen.update(positions)

    def inherited_by(self, interval: KeyInterval) -> list[PositionRange]:
        """Copies of the pieces, cut to ``interval``: the start of a child of the receiver."""
        found = []
        for piece in self.pieces:
            common = piece.interval.intersection(interval)
            if common is not None:
                found.append(PositionRange(common, piece.mark, piece.holes))
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

    def _coalesce(self) -> None:
        first = self.pieces[0]
        if len(self.pieces) == 1 or not self.complete:
            return
        if all(piece.mark == first.mark and piece.holes == first.holes for piece in self.pieces):
            self.pieces = [PositionRange(self.interval, first.mark, first.holes)]
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

    def _piece(self, key: bytes) -> PositionRange:
        return self.pieces[bisect_right(self._starts, key) - 1]
