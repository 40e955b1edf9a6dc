"""The watermark bounds of keys from before a merge (sections 4.5, 7.1; G7, G14).

The parents of a merge usually have different watermarks, and the child
starts from the smallest. Keys of another parent have seen a higher watermark. For these keys three things must hold:

- late records stay late,
- ``ctx.watermark`` does not go back,
- timers that were due are due before the records that follow.

So the parent's watermark is a lower bound of what its keys see. The bound ends when the child's watermark has passed
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP

__all__ = ["BoundRow", "KeyWatermarkBounds"]

BoundRow = tuple[bytes, bytes | None, int]
"""First key, end of the keys (None: no end), bound."""


class KeyWatermarkBounds:
    """Watermark bounds by key range. Ranges may overlap, and the largest bound of a key counts."""

    __slots__ = ("_rows", "lowest")

    def __init__(self, rows: Iterable[BoundRow]) -> None:
        self._rows = _joined(rows)
        self.lowest = min((bound for _, _, bound in self._rows), default=MIN_TIMESTAMP)
        """While the interval's watermark is below it, the watermark has passed no bound."""

    def bound_of(self, key: bytes) -> int:
        """The bound of ``key``. MIN_TIMESTAMP: it has none."""
        found: int = MIN_TIMESTAMP
        for start, end, bound in self._rows:
            if bound > found and start <= key and (end is None or key < end):
                found = bound
        return found

    def above(self, watermark: int) -> KeyWatermarkBounds:
        """The bounds that ``watermark`` has not passed."""
        return KeyWatermarkBounds(row for row in self._rows if row[2] > watermark)

    def within(self, keys: KeyInterval) -> list[BoundRow]:
        """The bounds for ``keys``, with ranges reduced to them."""
        found: list[BoundRow] = []
        for start, end, bound in self._rows:
            common = keys.intersection(KeyInterval(start, end))
            if common is not None:
                found.append((common.start, common.end, bound))
        return found

    def rows(self) -> list[BoundRow]:
        """All bounds, as a base part stores them."""
        return list(self._rows)


def _joined(rows: Iterable[BoundRow]) -> list[BoundRow]:
    """Merge adjacent and overlapping ranges with equal bounds, so that repeated splits and merges add no rows."""
    joined: list[BoundRow] = []
    for start, end, bound in sorted(rows, key=lambda row: (row[2], row[0])):
        if joined and joined[-1][2] == bound:
            first, last, _ = joined[-1]
            if last is None:
                continue
            if start <= last:
                joined[-1] = (first, None if end is None else max(last, end), bound)
                continue
        joined.append((start, end, bound))
    return joined
