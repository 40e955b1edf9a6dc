"""Windows of a number of records of a key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.agg.aggregator import Aggregator
from millwheel.model.time import LAST_TIMESTAMP, MAX_TIMESTAMP, Duration, TimeInt, Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer
from millwheel.windows.result import Row

__all__ = ["CountWindow"]

A = TypeVar("A")
_NO_TIME = Timestamp(0)


class Open(msgspec.Struct, Generic[A], array_like=True):
    """A window that is not full: how many records it has, the largest of their timestamps, and their accumulator."""

    count: int
    latest: TimeInt
    accumulator: A
    until: TimeInt = MAX_TIMESTAMP
    """When it is produced though it is not full."""


class CountWindow(Computation[Any, list[Open[A]]], Generic[A]):
    """Produces one result for each ``size`` records of a key, in the order in which they arrive.

    Args:
        size: How many records a window has.
        aggregator: Computes the value of a window.
        output: The stream of the results. They have the largest timestamp of their records.
        row: What a result is. It gets no window.
        within: When a window that is not full is produced: as soon as the low watermark is so long after the timestamp
            of the record that opened it, in microseconds. None: never.

    Raises:
        UsageError: ``size`` or ``within`` is not positive, or ``within`` is probably in another unit.
    """

    def __init__(
        self, size: int, aggregator: Aggregator[A, Any], output: str, row: Row, within: Duration | None = None
    ) -> None:
        if size < 1:
            raise UsageError(f"count_window takes a positive number of records, not {size}")
        if within is not None:
            check_duration("count_window(within=...)", within)
        self.size = size
        self.aggregator = aggregator
        self._add = aggregator.add
        self.output = output
        self.row = row
        self.within = within
        # The type argument for A. It defines the type of the state.
        self.__orig_class__ = CountWindow[aggregator.accumulator]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.row.type}

    def process_record(self, ctx: Context[list[Open[A]]], record: Record[Any]) -> None:
        """Add the record to the window, and produce the window if it is full."""
        state = ctx.state
        is_new = not state
        if is_new:
            until = MAX_TIMESTAMP if self.within is None else min(record.timestamp + self.within, MAX_TIMESTAMP)
            state.append(Open(0, record.timestamp, self.aggregator.new(), until))
        window = state[0]
        # Where the watermark has passed the timer and the window is here, the timer was given up or is due.
        if self.within is not None and self.size > 1 and (is_new or window.until <= ctx.watermark):
            ctx.set_timer(Timestamp(window.until))
        window.count += 1
        if record.timestamp > window.latest:
            window.latest = record.timestamp
        window.accumulator = self._add(window.accumulator, record)
        if window.count >= self.size:  # more, if the size was larger when the window was opened
            if self.within is not None:
                ctx.cancel_timer()
            self._produce(ctx, window.latest)

    def process_timer(self, ctx: Context[list[Open[A]]], timer: Timer) -> None:
        """Produce the window though it is not full. A full one leaves its timer if ``within`` is no longer given."""
        if ctx.state and ctx.state[0].until <= timer.timestamp:
            self._produce(ctx, max(ctx.state[0].latest, timer.timestamp))

    def _produce(self, ctx: Context[list[Open[A]]], at: int) -> None:
        value = self.aggregator.result(ctx.state[0].accumulator)
        result = self.row.make(ctx.key, _NO_TIME, _NO_TIME, value, 0)
        ctx.produce(self.output, result, timestamp=Timestamp(min(at, LAST_TIMESTAMP)))
        del ctx.state
