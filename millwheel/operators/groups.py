"""Operators over all records of a key: groups that are complete, copies that are dropped, values that change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

from millwheel.agg.aggregator import Aggregator
from millwheel.agg.reading import always, same
from millwheel.model.time import MAX_TIMESTAMP, Duration, Timestamp
from millwheel.operators.results import each_of
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer
from millwheel.windows.result import Row

__all__ = ["Complete", "Deduplicate", "RunningAggregate"]

T = TypeVar("T")
A = TypeVar("A")


class Complete(Computation[Any, dict[int, list[T]]], Generic[T]):
    """Calls a function with all records of a key and timestamp, when the low watermark has passed them.

    The results of a window have the window's end as timestamp. So this is the second phase of what needs the results of
    all keys, such as the auction with the most bids. The records are sorted by their encodings: the order in which they
    arrived has no effect. A record that comes after its group was completed makes a group of its own, unless ``late=``
    drops it.

    Args:
        function: Returns the results of a group.
        output: The stream of the results. They have the timestamp of the group.
        item: The type of the records.
        result: The type of the results.
    """

    def __init__(self, function: Callable[[list[T]], Iterable[Any]], output: str, item: Any, result: Any) -> None:
        self.function = function
        self.output = output
        self.result = result
        # The type argument for T. It defines the type of the state.
        self.__orig_class__ = Complete[item]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[dict[int, list[T]]], record: Record[Any]) -> None:
        """Keep the record until its group is complete."""
        at = record.timestamp
        group = ctx.state.setdefault(at, [])
        if not group or record.late:
            # At the next microsecond, every record of this timestamp has arrived. A late record finds a group if the
            # group's timer is due, or was given up while the state could not be read. A new timer wakes the second.
            ctx.set_timer(Timestamp(min(at + 1, MAX_TIMESTAMP)), str(at), hold=at)
        group.append(record.value)

    def process_timer(self, ctx: Context[dict[int, list[T]]], timer: Timer) -> None:
        """Produce the results of a group."""
        at = int(timer.tag)
        for result in each_of(self.function(sorted(ctx.state.pop(at), key=rank_bytes)), self.function):
            ctx.produce(self.output, result, timestamp=Timestamp(at))
        if not ctx.state:
            del ctx.state

    def _given_up(self, ctx: Context[dict[int, list[T]]], timer: Timer) -> None:
        ctx.state.pop(int(timer.tag), None)
        if not ctx.state:
            del ctx.state


class Deduplicate(Computation[Any, int | None]):
    """Passes the first record of a key that arrives, and drops the others until it is forgotten.

    Args:
        output: The stream of the records that pass.
        within: How long after its timestamp the first record is remembered, in microseconds of event time. None: for
            ever.

    Raises:
        UsageError: ``within`` is not positive, or is probably in another unit.
    """

    def __init__(self, output: str, within: Duration | None = None) -> None:
        if within is not None:
            check_duration("deduplicate(within)", within)
        self.output = output
        self.within = within

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: SAME_AS_INPUT}

    def process_record(self, ctx: Context[int | None], record: Record[Any]) -> None:
        """Pass the record if it is the first of its key."""
        if ctx.state is None:
            ctx.state = MAX_TIMESTAMP if self.within is None else min(record.timestamp + self.within, MAX_TIMESTAMP)
            if self.within is not None:
                ctx.set_timer(Timestamp(ctx.state))
            ctx.produce(self.output, record.value)

    def process_timer(self, ctx: Context[int | None], timer: Timer) -> None:
        """Forget the record, unless the timer is of an earlier form, which did not remember records for ever."""
        if self.within is not None:
            del ctx.state


class RunningAggregate(Computation[Any, list[A]], Generic[A]):
    """Produces the aggregate of all records of a key so far, after each record that changes it.

    Args:
        aggregator: Computes the value.
        output: The stream of the values. They have the timestamps of the records.
        row: What a result is. It gets no window.
    """

    def __init__(self, aggregator: Aggregator[A, Any], output: str, row: Row) -> None:
        self.aggregator = aggregator
        self.output = output
        self.row = row
        self._add = aggregator.add
        self._result = aggregator.result
        self._differ = aggregator.differ
        self._make = row.make
        # The type argument for A. It defines the type of the state.
        self.__orig_class__ = RunningAggregate[aggregator.accumulator]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.row.type}

    def process_record(self, ctx: Context[list[A]], record: Record[Any]) -> None:
        """Add the record, and produce the value if it has changed."""
        state = ctx.state
        if not state:
            after = self._add(self.aggregator.new(), record)
            state.append(after)
        elif self._differ is always:
            after = state[0] = self._add(state[0], record)
        else:
            before = state[0]
            # Encoded, because the value may be the accumulator, and ``add`` may change that in place.
            encoded = rank_bytes(self._result(before)) if self._differ is None else b""
            after = state[0] = self._add(before, record)
            if not (self._differ(before, after) if self._differ else encoded != rank_bytes(self._result(after))):
                return
        value = after if self._result is same else self._result(after)
        ctx.produce(self.output, self._make(ctx.key, _NO_TIME, _NO_TIME, value, 0))


_NO_TIME: Final = Timestamp(0)
