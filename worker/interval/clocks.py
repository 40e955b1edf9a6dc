"""The watermarks and the clocks of one interval (sections 4.5, 4.6; G7)."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.model.time import LAST_TIMESTAMP, MAX_CLOCK_SKEW_US, MIN_TIMESTAMP, TimeDomain
from millwheel.model.watermarks import InputWatermark, MinTracker
from millwheel.rpc.v1.watermark_pb2 import (
    HOLD_KIND_INPUT,
    HOLD_KIND_PRODUCTION,
    HOLD_KIND_RECORD,
    HOLD_KIND_STATE,
    HOLD_KIND_TIMER,
    HoldKind,
)
from millwheel.sdk.scope import Scope
from millwheel.worker.interval.holds import Holds
from millwheel.worker.interval.key_bounds import BoundRow, KeyWatermarkBounds

__all__ = ["IntervalClocks", "OutputWatermark"]


class IntervalClocks:
    """The sole owner of the input watermark and of the wall-clock time that the interval uses.

    It also sets what hooks see of them (``Scope``).
    """

    def __init__(self, scope: Scope, inputs: InputWatermark) -> None:
        self._scope = scope
        self.inputs = inputs
        """The broadcast watermarks of the senders."""
        self.watermark: int = MIN_TIMESTAMP
        """The input watermark in use. It is monotone."""
        self.wall = 0
        """The wall-clock time in use. It is monotone, also across owners, unless a clock is corrected by much."""
        self.elapsed = 0
        """The clock of delays, in microseconds. It advances with the wall clock and never goes back, even if an earlier
        owner's clock was ahead. Other modules call its values times of ``elapsed``."""
        self.now = 0
        """The wall clock."""
        self.highest_stated: int = MIN_TIMESTAMP
        """The highest watermark stated by any delivery. Some computation before this one may have reached it."""
        self.key_bounds = KeyWatermarkBounds(())
        """The bounds from before a merge that the watermark has not passed."""
        self.bounded = False
        """Whether there are such bounds."""

    def time_in(self, domain: TimeDomain) -> int:
        """The time in use of that domain. Timers up to it are due."""
        return self.watermark if domain is TimeDomain.EVENT_TIME else self.wall

    def set_now(self, now: int) -> None:
        """Set the wall-clock time to ``now``.

        - If the clock was set back a little, ``wall`` keeps its value until the clock reaches it again. A
          processing-time timer may have fired by it.
        - If the clock was set back by more than ``MAX_CLOCK_SKEW_US``, the old value was wrong. ``wall`` follows the
          clock. Otherwise ``wall`` would stand still until the clock reaches the old value: a timer of one second, set
          in an hour's error, would take an hour.

        ``elapsed`` never goes back.
        """
        if now > self.wall or self.wall - now > MAX_CLOCK_SKEW_US:
            self.wall = self._scope.now = now
        self.elapsed += max(0, now - self.now)
        self.now = now

    def wall_at(self, elapsed: int) -> int:
        """The wall-clock time that corresponds to ``elapsed``, unless the clock is set in between."""
        return self.now + elapsed - self.elapsed

    def advance(self, pending: int) -> None:
        """Advance the input watermark = min(senders' broadcast values, ``pending``: records that are not committed).

        It is monotone (G7).
        """
        self._raise(min(self.inputs.value, pending))

    def resume(self, output: int) -> None:
        """Raise the input watermark to ``output``. The earlier owners of all these keys have reported at least that.

        Their input watermarks were as high, perhaps in no entry. So each uncommitted record below it was late for them,
        and no timer below it is left. Consumers may know the value. Otherwise what is on time here, or in a window that
        is kept, could be late for them (G14).
        """
        self._raise(output)

    def _raise(self, to: int) -> None:
        if to > self.watermark:
            self.watermark = self._scope.watermark = to
            if self.bounded and to >= self.key_bounds.lowest:
                self._set_key_bounds(self.key_bounds.above(to))

    def watermark_of(self, key: bytes) -> int:
        """The input watermark that ``key`` sees: the interval's, or the key's bound from a merge if it is higher."""
        return max(self.watermark, self.key_bounds.bound_of(key)) if self.bounded else self.watermark

    def restore(self, watermark: int, wall: int, bounds: Iterable[BoundRow]) -> None:
        """Continue from the values of the earlier owner: a takeover.

        A ``wall`` far ahead of this clock is ignored: the earlier owner's clock was wrong. See ``set_now``.
        """
        self.watermark = self._scope.watermark = watermark
        if wall - self.now <= MAX_CLOCK_SKEW_US:
            self.wall = self._scope.now = max(self.wall, wall)
        self._set_key_bounds(KeyWatermarkBounds(bounds).above(watermark))

    def _set_key_bounds(self, bounds: KeyWatermarkBounds) -> None:
        self.key_bounds, self.bounded = bounds, bool(bounds.rows())
        self._scope.bound_of = bounds.bound_of if self.bounded else None


class OutputWatermark:
    """The output watermark of one interval, at its oldest unfinished work.

    Unfinished are uncommitted records, productions without an ACK, timers, and holds.
    """

    __slots__ = ("_holds", "_productions", "_records", "value")

    def __init__(self, records: MinTracker, productions: MinTracker, holds: Holds) -> None:
        """``records``, ``productions``: their timestamps. Their owners are the intake and the outbox."""
        self._records = records
        self._productions = productions
        self._holds = holds
        self.value: int = MIN_TIMESTAMP
        """The output watermark last reported. It is monotone."""

    def lowest(self, watermark: int, *times: int | None) -> tuple[int, HoldKind.ValueType]:
        """The least timestamp of unfinished work, and the kind of that work (section 4.5).

        Args:
            watermark: The input watermark in use.
            times: The times of the first event-time timers: in memory, and in the store. None: there are none.
        """
        output, kind = watermark, HOLD_KIND_INPUT
        if (first := self._records.min()) <= output:
            output, kind = first, HOLD_KIND_RECORD
        if (first := self._productions.min()) < output:
            output, kind = first, HOLD_KIND_PRODUCTION
        for time in times:
            # A timer at the end of time holds one step before it, as ``Hold.cover`` says.
            if time is not None and (first := min(time, LAST_TIMESTAMP)) < output:
                output, kind = first, HOLD_KIND_TIMER
        if (first := min(self._holds.stated.min(), self._holds.passing.min())) < output:
            output, kind = first, HOLD_KIND_STATE
        return output, kind

    def rise(self, to: int) -> int:
        """Raise the output watermark to ``to``, unless it is higher. Returns it. It never goes back (G7)."""
        self.value = max(to, self.value)
        return self.value
