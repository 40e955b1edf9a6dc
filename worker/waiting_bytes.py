"""The bytes of deliveries that wait for a look-up, or behind another waiting delivery (G13)."""

from __future__ import annotations

from typing import Final

from millwheel.worker.messages import Delivery

__all__ = ["WaitingBytes"]

_RECORD_BYTES: Final = 64
"""Bytes counted for each waiting record beside key and value: its timestamp, id and places in the columns."""

_MAX_REFUSED_SENDERS: Final = 1_000
"""Maximum number of refused senders whose place is remembered (G13). Another one is added at a later refusal, if there
is room then."""


class WaitingBytes:
    """Counts the bytes of one receiver's deliveries that wait for a look-up, or behind another waiting delivery (G13).

    Invariant: ``used`` is at most ``limit``, unless a single delivery waits alone. A single delivery may have any size:
    every look-up ends, so every delivery gets its turn (G8).

    First come, first served: room is reserved for the sender that was refused first. Others enter if they leave that
    room free. Without the reservation, small deliveries could keep a large one out for ever.

    The first sender may be gone, or need no room any more. So its reservation lapses in two cases. Both count from the
    last refusal of the first sender. Either another sender was refused and then came again, or there were more than
    ``_MAX_REFUSED_SENDERS`` refusals.
    """

    def __init__(self, limit: int | None = None) -> None:
        """
        Args:
            limit: Maximum bytes that may wait together, with keys and a fixed amount per record. None: no limit.
        """
        self.used = 0
        self._limit = limit
        self._sizes: dict[Delivery, int] = {}
        self.refused: dict[str, tuple[int, int]] = {}
        """Refused senders that have not entered since, in order of their first refusal. The value: the bytes that the
        sender needs, and the number of its last refusal."""
        self._refusals = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def enter(self, delivery: Delivery) -> bool:
        """Count a delivery. Returns whether it may wait. A delivery that already waits may continue to wait."""
        if delivery in self._sizes:
            return True
        size = sum(map(len, delivery.values)) + sum(map(len, delivery.keys)) + _RECORD_BYTES * len(delivery.keys)
        origin = delivery.sender.name
        if self._limit is not None:
            self._drop_silent_places(origin)
            if not self._has_room(origin, size, self._limit):
                self._note(origin, size)
                return False
        self.refused.pop(origin, None)
        self._sizes[delivery] = size
        self.used += size
        return True

    def _drop_silent_places(self, origin: str) -> None:
        """Drop the first places until one whose sender is not silent. ``origin``: the sender that comes now."""
        _, before = self.refused.get(origin, (0, 0))
        while self.refused:
            first, (_, last) = next(iter(self.refused.items()))
            if first == origin or (last > before and self._refusals - last <= _MAX_REFUSED_SENDERS):
                return
            del self.refused[first]

    def _has_room(self, origin: str, size: int, limit: int) -> bool:
        first = next(iter(self.refused), origin)
        kept = self.refused[first][0] if first != origin else 0
        alone = not self._sizes and not kept
        return alone or self.used + size + kept <= limit

    def _note(self, origin: str, size: int) -> None:
        self._refusals += 1
        if origin in self.refused or len(self.refused) < _MAX_REFUSED_SENDERS:
            self.refused[origin] = size, self._refusals

    def leave(self, delivery: Delivery) -> None:
        """The delivery waits no longer. No effect if it did not wait."""
        self.used -= self._sizes.pop(delivery, 0)

    def forget(self, origin: str) -> None:
        """The sender needs no room, or sends nothing any more: cancel its reservation."""
        self.refused.pop(origin, None)
