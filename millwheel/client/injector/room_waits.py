"""For how long an injector's back-pressure has kept its program waiting (section 5.2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

__all__ = ["RoomCause", "RoomWaits"]


class RoomCause(Enum):
    """Why a record has to wait before it is taken."""

    WINDOW = "window"
    """So many records are un-ACKed that no other is taken (G13)."""
    SKEW = "skew"
    """The record is too far ahead of the low watermark (8.4)."""


class _Total:
    """The time of one cause. ``counted``: seconds before, and since when at least one call waits. None: no call."""

    __slots__ = ("calls", "counted")

    def __init__(self) -> None:
        self.calls = 0
        self.counted: tuple[float, float | None] = 0.0, None


class RoomWaits:
    """The waits of all calls of one injector. The event loop's thread counts them, and any thread reads them.

    Calls that wait at the same time count once, so the time never passes faster than a clock's.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns monotone seconds."""
        self._clock = clock
        self._totals = {cause: _Total() for cause in RoomCause}

    @contextmanager
    def waiting(self, cause: RoomCause) -> Iterator[None]:
        """Context of one wait."""
        total = self._totals[cause]
        if not total.calls:
            total.counted = total.counted[0], self._clock()
        total.calls += 1
        try:
            yield
        finally:
            total.calls -= 1
            if not total.calls:
                total.counted = self._seconds(total), None

    def seconds(self) -> dict[RoomCause, float]:
        """The seconds of each cause so far, with those of waits that have not ended. They never fall."""
        return {cause: self._seconds(total) for cause, total in self._totals.items()}

    def _seconds(self, total: _Total) -> float:
        # One read of the pair: another thread may replace it meanwhile.
        before, since = total.counted
        return before if since is None else before + self._clock() - since
