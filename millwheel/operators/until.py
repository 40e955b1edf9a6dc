"""The records of a key up to one that meets a condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millwheel.model.time import MAX_TIMESTAMP, Duration, Timestamp
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record, Timer

__all__ = ["Until"]


class Until(Computation[Any, int | None]):
    """Passes the records of a key up to the first that meets a condition, and this one. Those after it do not pass.

    The state of a key that has ended is the time at which it begins again.

    Args:
        condition: Whether a value is the last one.
        output: The stream of the records that pass.
        keep: How long a key has ended, in microseconds of event time after its last record; after a late one, from the
            low watermark on. None: for ever.
        rest: The stream of the records after the last one. None: they are dropped.

    Raises:
        UsageError: ``keep`` is not positive, or is probably in another unit. Or both streams have the same name.
    """

    def __init__(
        self, condition: Callable[[Any], object], output: str, keep: Duration | None = None, rest: str | None = None
    ) -> None:
        if keep is not None:
            check_duration("keep", keep)
        if rest == output:
            raise UsageError(f"until({output!r}, rest={rest!r}) has one name for two streams")
        self.condition = condition
        self.output = output
        self.keep = keep
        self.rest = rest

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        outputs = {self.output: SAME_AS_INPUT}
        return outputs if self.rest is None else {**outputs, self.rest: SAME_AS_INPUT}

    def process_record(self, ctx: Context[int | None], record: Record[Any]) -> None:
        """Pass the record, unless the key has ended."""
        if ctx.state is None:
            if self.condition(record.value):
                self._end(ctx, max(record.timestamp, ctx.watermark))
            ctx.produce(self.output, record.value)
        elif self.rest is not None:
            ctx.produce(self.rest, record.value)

    def _end(self, ctx: Context[int | None], at: int) -> None:
        begins = MAX_TIMESTAMP if self.keep is None else min(at + self.keep, MAX_TIMESTAMP)
        ctx.state = begins
        if self.keep is not None:
            # A key that is only to be forgotten holds no watermark back.
            ctx.set_timer(Timestamp(begins), hold=Timestamp(MAX_TIMESTAMP))

    def process_timer(self, ctx: Context[int | None], timer: Timer) -> None:
        """The key begins again, unless the timer is of an earlier form, whose keys did not end for ever."""
        if self.keep is not None:
            del ctx.state
