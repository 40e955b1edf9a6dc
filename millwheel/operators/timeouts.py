"""Results for keys that have been silent for a time (section 4.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from millwheel.model.time import MAX_TIMESTAMP, Duration, TimeDomain, Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer

__all__ = ["ClockTimeout", "Timeout"]

T = TypeVar("T")


class _OnSilence(Generic[T]):
    """What both computations of this module are made from."""

    def __init__(self, after: Duration, function: Callable[[T], Any], output: str, item: Any, result: Any) -> None:
        check_duration("timeout(after)", after)
        self.after = after
        self.function = function
        self.output = output
        self.result = result
        # The type argument for T. It defines the type of the state.
        computation: Any = type(self)
        self.__orig_class__ = computation[item]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}


class Timeout(_OnSilence[T], Computation[Any, list[tuple[int, int, T]]]):
    """Produces a result when no record of a key is in ``after`` from its last one on, in event time.

    A record at ``after`` from the last one is too late. The state has the stretches of records that may still grow:
    their first time, their last time, and their last record. So the results do not depend on the order of arrival. A
    late record whose own time has run out is dropped.

    Args:
        after: How long a key is silent, in microseconds.
        function: Returns the result for the last record.
        output: The stream of the results. They have the time at which the key has been silent for ``after``.
        item: The type of the records.
        result: The type of the results.

    Raises:
        UsageError: ``after`` is not positive, or is probably in another unit.
    """

    def process_record(self, ctx: Context[list[tuple[int, int, T]]], record: Record[Any]) -> None:
        """Add the record to its stretch, and connect the stretches between which it is."""
        at, after, stretches = record.timestamp, self.after, ctx.state
        joined = [one for one in stretches if one[0] < at + after and at < one[1] + after]
        if not joined and at + after <= ctx.watermark:
            ctx.count_dropped()
            return
        for one in joined:
            ctx.cancel_timer(str(one[0]))
            stretches.remove(one)
        first = min([at, *(one[0] for one in joined)])
        last: int = at
        value = record.value
        for _, time, other in joined:
            if time > last or (time == last and rank_bytes(other) > rank_bytes(value)):
                last, value = time, other
        stretches.append((first, last, value))
        ctx.set_timer(Timestamp(min(last + after, MAX_TIMESTAMP)), str(first))

    def process_timer(self, ctx: Context[list[tuple[int, int, T]]], timer: Timer) -> None:
        """Produce the result of a stretch that has ended."""
        ctx.produce(self.output, self.function(self._take(ctx, timer)))

    def _given_up(self, ctx: Context[list[tuple[int, int, T]]], timer: Timer) -> None:
        self._take(ctx, timer)

    def _take(self, ctx: Context[list[tuple[int, int, T]]], timer: Timer) -> T:
        """Remove the stretch of a timer. Returns its last record."""
        place = next(place for place, one in enumerate(ctx.state) if one[0] == int(timer.tag))
        return ctx.state.pop(place)[2]


class ClockTimeout(_OnSilence[T], Computation[Any, list[T]]):
    """Produces a result when no record of a key has arrived for a time, by the wall clock.

    Args:
        after: How long a key is silent, in microseconds.
        function: Returns the result for the record that arrived last.
        output: The stream of the results. They have the timestamp of that record, or the low watermark if it is higher.
        item: The type of the records.
        result: The type of the results.

    Raises:
        UsageError: ``after`` is not positive, or is probably in another unit.
    """

    def process_record(self, ctx: Context[list[T]], record: Record[Any]) -> None:
        """Wait from now on."""
        ctx.state[:] = [record.value]
        ctx.set_timer(Timestamp(ctx.now + self.after), domain=TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: Context[list[T]], timer: Timer) -> None:
        """Produce the result of the record that arrived last."""
        ctx.produce(self.output, self.function(ctx.state[0]))
        del ctx.state

    def _given_up(self, ctx: Context[list[T]], timer: Timer) -> None:
        ctx.state.clear()
