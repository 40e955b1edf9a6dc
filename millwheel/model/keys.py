"""Keys and lexicographic key intervals (sections 4.2 and 7.1).

A key is text for the user and UTF-8 bytes for the system. Intervals follow the order of the bytes, which equals the
order of the text's code points. An interval is half open. An end of ``None`` means that it has no upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ALL_KEYS", "KeyInterval", "interval_text", "past"]


@dataclass(frozen=True, slots=True, order=True)
class KeyInterval:
    """The keys k with ``start <= k`` and, unless ``end`` is None, ``k < end``."""

    start: bytes = b""
    end: bytes | None = None

    def __post_init__(self) -> None:
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"empty key interval: start {self.start!r} is not below end {self.end!r}")

    def __contains__(self, key: bytes) -> bool:
        return self.start <= key and (self.end is None or key < self.end)

    def overlaps(self, other: KeyInterval) -> bool:
        """Whether at least one key is in both intervals."""
        return (self.end is None or other.start < self.end) and (other.end is None or self.start < other.end)

    def intersection(self, other: KeyInterval) -> KeyInterval | None:
        """The keys that are in both intervals; None if there are none."""
        if not self.overlaps(other):
            return None
        start = max(self.start, other.start)
        if self.end is None:
            return KeyInterval(start, other.end)
        return KeyInterval(start, self.end if other.end is None else min(self.end, other.end))

    def split(self, at: bytes) -> tuple[KeyInterval, KeyInterval]:
        """The part below ``at``, and the part from ``at`` on; ValueError if either part would be empty."""
        if at not in self or at == self.start:
            raise ValueError(f"{at!r} does not split {self}")
        return KeyInterval(self.start, at), KeyInterval(at, self.end)

    def __str__(self) -> str:
        end = "+inf" if self.end is None else repr(self.end.decode("utf-8", "backslashreplace"))
        return f"[{self.start.decode('utf-8', 'backslashreplace')!r}, {end})"


ALL_KEYS: Final = KeyInterval()
"""The interval that contains every key."""


def past(prefix: bytes) -> bytes:
    """Return the first key after all keys with ``prefix``, whose last byte is not 255. UTF-8 has no such byte."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def interval_text(keys: KeyInterval) -> str:
    """The interval for people, by its bounds. A bound that is no text has escapes."""
    end = "" if keys.end is None else keys.end.decode(errors="backslashreplace")
    return f"[{keys.start.decode(errors='backslashreplace')}, {end})"
