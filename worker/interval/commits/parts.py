"""Base parts of bounded size.

Stores limit the size of a write, and one write must not delay others (G13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from millwheel.worker.interval.entry import encode_part

__all__ = ["PART_BYTES", "in_parts", "numbered"]

PART_BYTES: Final = 4 << 20
"""Maximum size of one part. A single row is smaller, because keys, values and timers' tags have limits."""


Size = Callable[[Any], int]
"""Approximate size of a row in bytes: at most slightly more than its encoded size."""


def in_parts(rows: Sequence[Any], most: int, size: Size | None = None) -> Iterator[tuple[Sequence[Any], bytes]]:
    """Split the rows, in order, into groups with their bytes: at most ``most`` rows and PART_BYTES each.

    Without ``size`` each group has ``most`` rows, and a group that is too large is encoded again in halves. Rows that
    may be large need ``size``. Then about PART_BYTES are encoded at a time, and most rows are encoded once.
    """
    for some in _some(rows, most, size):
        yield from _halved(some)


def _some(rows: Sequence[Any], most: int, size: Size | None) -> Iterator[Sequence[Any]]:
    if size is None:
        yield from (rows[at : at + most] for at in range(0, len(rows), most))
        return
    first = total = 0
    for at, row in enumerate(rows):
        more = size(row)
        if at > first and (total + more > PART_BYTES or at - first >= most):
            yield rows[first:at]
            first, total = at, 0
        total += more
    if first < len(rows):
        yield rows[first:]


def _halved(rows: Sequence[Any]) -> Iterator[tuple[Sequence[Any], bytes]]:
    blob = encode_part(rows)
    if len(blob) <= PART_BYTES or len(rows) < 2:
        yield rows, blob
        return
    middle = len(rows) // 2
    yield from _halved(rows[:middle])
    yield from _halved(rows[middle:])


def numbered(kind: str, rows: Sequence[Any], most: int, size: Size | None = None) -> dict[str, bytes]:
    """The rows as parts of that kind, by part name."""
    return {f"{kind}/{number}": blob for number, (_, blob) in enumerate(in_parts(rows, most, size))}
