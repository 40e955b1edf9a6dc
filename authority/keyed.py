"""A group's watermark by key intervals (7.2).

Invariant: the map covers every key at all times. Keys that never had an owner are shares with sequencer 0 at minus
infinity. An incomplete group therefore needs no special case: its minimum is minus infinity.

Invariant: every share is at or above the decided value.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.authority.group import Group
from millwheel.authority.percentiles import Work, work_of
from millwheel.authority.shares import Explanation, Share
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.range_map import RangeMap
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import AcceptRefusedError, WatermarkReport

__all__ = ["MAX_SHARES", "KeyedGroup"]

MAX_SHARES: Final = 100_000
"""The most shares of a group. A computation has thousands of intervals at most. Only a caller that invents intervals
would have more, and each share is in memory and in the journal (G13)."""


class KeyedGroup(Group[KeyInterval]):
    """The shares of one group by interval, and their minimum."""

    __slots__ = ("_map",)

    def __init__(self, name: str, value: int = MIN_TIMESTAMP, shares: Iterable[Share[KeyInterval]] = ()) -> None:
        """``shares`` are disjoint. Keys without a share get one with sequencer 0."""
        super().__init__(name, value)
        self._map = RangeMap.from_items((share.member, share) for share in shares)
        for gap in self._map.gaps(ALL_KEYS):
            self._map.assign(gap, Share(gap, 0, MIN_TIMESTAMP))
        for share in self._map.values():
            self._put(share)

    def accept(self, keys: KeyInterval, sequencer: int) -> Share[KeyInterval]:
        """Accept ``sequencer`` as the owner of ``keys`` (G4).

        The share starts from the smallest known value of its keys, so the children of a split inherit their parent's.
        What remains of shares that it cuts is journaled again with its newest values.
        Raises AcceptRefusedError if a larger sequencer owns any of the keys, or the group would have too many shares.
        Idempotent.
        """
        over = [share for _, share in self._map.overlapping(keys)]
        largest = max(over, key=lambda share: share.sequencer)
        if largest.sequencer == sequencer and largest.member == keys and len(over) == 1:
            return largest
        if largest.sequencer >= sequencer:
            raise AcceptRefusedError(
                f"sequencer {sequencer} for {keys} of {self.name}: sequencer {largest.sequencer} holds {largest.member}"
            )
        count = len(self._shares) - len(over) + 1 + sum(len(_outside(share.member, keys)) for share in over)
        if count > max(MAX_SHARES, len(self._shares)):
            raise AcceptRefusedError(f"{keys} of {self.name}: the group has {len(self._shares):,} shares already")
        made = Share(keys, sequencer, min(share.watermark for share in over))
        self.moved.update(dict.fromkeys(self.put(made)))
        return made

    def put(self, made: Share[KeyInterval]) -> list[Share[KeyInterval]]:
        """Assign the keys of ``made`` to it, and return what remains of the shares that it cuts.

        A cut share keeps its values outside those keys. Both acceptance and its replay use this method.
        """
        remains = []
        keys = made.member
        over = self._map.overlapping(keys)
        self._map.assign(keys, made)
        for piece, share in over:
            self._drop(share)
            for rest in _outside(piece, keys):
                remains.append(share.copy_for(rest))
                self._map.assign(rest, remains[-1])
                self._put(remains[-1])
        self._put(made)
        return remains

    def _is_superseded(self, report: WatermarkReport) -> bool:
        keys = report.member
        assert isinstance(keys, KeyInterval)
        return any(share.sequencer > report.sequencer for _, share in self._map.overlapping(keys))

    def restore(self, keys: KeyInterval, sequencer: int, watermark: int) -> None:
        """Replay a journaled value."""
        share = self._shares.get(keys)
        if share is None or share.sequencer != sequencer:
            self.put(Share(keys, sequencer, watermark))
            return
        self._set(share, watermark)

    def shares(self) -> list[Share[KeyInterval]]:
        """Return a copy of all shares in key order."""
        return self._map.values()

    def work(self, since: int) -> Work:
        """Return the pending work that the intervals published since ``since``.

        Its bound is the newest record that any interval has seen.
        """
        return work_of(self._map.values(), since, max)

    def explain(self, watermark: int, now: int, limit: int) -> Explanation:
        """Explain ``watermark``. A share says SILENT if it has no owner, or if its owner has stopped reporting."""
        smallest = self.smallest()
        shares = self._map.values()
        holding = [share for share in shares if share.watermark == smallest]
        return Explanation(
            self.name,
            watermark,
            [share.view(now) for share in holding[:limit]],
            [share.view(now) for share in shares[:limit]],
            len(holding),
            len(shares),
        )


def _outside(piece: KeyInterval, keys: KeyInterval) -> list[KeyInterval]:
    """Return the parts of ``piece`` outside ``keys``, which it overlaps."""
    rest = []
    if piece.start < keys.start:
        rest.append(KeyInterval(piece.start, keys.start))
    if keys.end is not None and (piece.end is None or keys.end < piece.end):
        rest.append(KeyInterval(keys.end, piece.end))
    return rest
