"""Base parts of bounded size: no store takes writes of any size, nor should one hold others up (design §5; G13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from millwheel.worker.interval.entry import encode_part

__all__ = ["PART_BYTES", "in_parts", "numbered"]

PART_BYTES: Final = 4 << 20
"""The most in one part. A single row is below it by the limits on keys, values and timers' tags."""


def in_parts(rows: Sequence[Any], most: int) -> Iterator[tuple[Sequence[Any], bytes]]:
    """The rows, in order, with their bytes: at most ``most`` rows and PART_BYTES at a time."""
    for at in range(0, len(rows), most):
        yield from _halved(rows[at : at + most])


def _halved(rows: Sequence[Any]) -> Iterator[tuple[Sequence[Any], bytes]]:
    blob = encode_part(rows)
    if len(blob) <= PART_BYTES or len(rows) < 2:
        yield rows, blob
        return
    middle = len(rows) // 2
    yield from _halved(rows[:middle])
    yield from _halved(rows[middle:])


def numbered(kind: str, rows: Sequence[Any], most: int) -> dict[str, bytes]:
    """The rows as parts of that kind, by name."""
    return {f"{kind}/{number}": blob for number, (_, blob) in enumerate(in_parts(rows, most))}
