"""What keys of a merged interval had been shown before the merge (sections 4.5, 7.1; G7, G14).

Parents of a merge rarely stand at the same watermark, and the child starts from the smaller one. Keys of
the other parent have seen more: for them what was late stays late, ``ctx.watermark`` does not go back, and timers
are due that were due there, before the records that follow. Their parent's watermark is their *floor* until the
child's own has passed it.
"""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.core.keys import KeyInterval
from millwheel.core.time import MIN_TIMESTAMP

__all__ = ["KeyFloors"]

FloorRow = tuple[bytes, bytes | None, int]
"""First key, end of the keys (None: all above), floor."""


class KeyFloors:
    """Floors by key range. Ranges may overlap: a key's floor is the largest."""

    __slots__ = ("_rows", "lowest")

    def __init__(self, rows: Iterable[FloorRow]) -> None:
        self._rows = _joined(rows)
        self.lowest = min((floor for _, _, floor in self._rows), default=MIN_TIMESTAMP)
        """Below it the interval's watermark passes no floor."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def of(self, key: bytes) -> int:
        """The floor of ``key``; MIN_TIMESTAMP if it has none."""
        found: int = MIN_TIMESTAMP
        for start, end, floor in self._rows:
            if floor > found and start <= key and (end is None or key < end):
                found = floor
        return found

    def above(self, watermark: int) -> KeyFloors:
        """The floors that ``watermark`` has not passed."""
        return KeyFloors(row for row in self._rows if row[2] > watermark)

    def within(self, keys: KeyInterval) -> list[FloorRow]:
        """The floors of ``keys``, cut to them."""
        found: list[FloorRow] = []
        for start, end, floor in self._rows:
            common = keys.intersection(KeyInterval(start, end))
            if common is not None:
                found.append((common.start, common.end, floor))
        return found

    def rows(self) -> list[FloorRow]:
        """All floors, as a base part keeps them."""
        return list(self._rows)


def _joined(rows: Iterable[FloorRow]) -> list[FloorRow]:
    """The rows with neighbours of one floor made one, however often their keys were cut and put together."""
    joined: list[FloorRow] = []
    for start, end, floor in sorted(rows, key=lambda row: (row[2], row[0])):
        if joined and joined[-1][2] == floor:
            first, last, _ = joined[-1]
            if last is None:
                continue
            if start <= last:
                joined[-1] = (first, None if end is None else max(last, end), floor)
                continue
        joined.append((start, end, floor))
    return joined
