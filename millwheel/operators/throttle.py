"""A bound on how many records of a key pass in a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from millwheel.model.time import MAX_TIMESTAMP, Duration, Timestamp
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer

__all__ = ["Throttle"]

MOST: Final = 1_000
"""The largest ``count``. The state has so many times."""


class Throttle(Computation[Any, list[int]]):
    """Passes a record unless ``count`` records of its key have passed in less than ``per`` around its timestamp.

    Invariant: of the records that pass, no ``count + 1`` have timestamps less than ``per`` apart, late ones aside. The
    state has the timestamps of those that have passed, in their order. A late record is compared with what is left of
    them.

    Args:
        count: How many records pass.
        per: In which time, in microseconds of event time.
        output: The stream of the records that pass.
        excess: The stream of the others. None: they are dropped.

    Raises:
        UsageError: ``count`` is no integer from 1 to 1,000. Or ``per`` is not positive, or is probably in another unit.
            Or both streams have the same name.
    """

    def __init__(self, count: int, per: Duration, output: str, excess: str | None = None) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST:
            raise UsageError(f"throttle takes a count from 1 to {MOST:,}, not {count!r}")
        check_duration("throttle(per)", per)
        if excess == output:
            raise UsageError(f"throttle({output!r}, excess={excess!r}) has one name for two streams")
        self.count = count
        self.per = per
        self.output = output
        self.excess = excess

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        outputs = {self.output: SAME_AS_INPUT}
        return outputs if self.excess is None else {**outputs, self.excess: SAME_AS_INPUT}

    def process_record(self, ctx: Context[list[int]], record: Record[Any]) -> None:
        """Pass the record if there is room for it."""
        passed, at = ctx.state, record.timestamp
        # No record that is not late comes so close to them.
        del passed[: bisect_right(passed, ctx.watermark - self.per)]
        place = bisect_right(passed, at)
        passed.insert(place, at)
        if self._has_room(passed, place):
            ctx.set_timer(Timestamp(min(passed[-1] + self.per, MAX_TIMESTAMP)))
            ctx.produce(self.output, record.value)
            return
        del passed[place]
        if self.excess is not None:
            ctx.produce(self.excess, record.value)

    def _has_room(self, times: list[int], place: int) -> bool:
        """Whether no ``count + 1`` times with that at ``place`` among them are too close to each other."""
        first, last = max(place - self.count, 0), min(place, len(times) - 1 - self.count)
        return all(times[low + self.count] - times[low] >= self.per for low in range(first, last + 1))

    def process_timer(self, ctx: Context[list[int]], timer: Timer) -> None:
        """Forget the key: all that have passed are too long ago. A smaller ``per`` may have set the timer too early."""
        ends = min(ctx.state[-1] + self.per, MAX_TIMESTAMP) if ctx.state else MAX_TIMESTAMP
        if ctx.state and timer.timestamp < ends:
            ctx.set_timer(Timestamp(ends))
        else:
            del ctx.state
