"""A state for each key that a function updates, for ever or for a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, Generic, TypeVar

from millwheel.model.time import MAX_TIMESTAMP, Duration, TimeDomain, Timestamp
from millwheel.operators.results import each_of, no_pair
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.records import Record, Timer

__all__ = ["ExpiringUpdate", "Update"]

S = TypeVar("S")


class Update(Computation[Any, list[S]], Generic[S]):
    """Calls ``function(state, value)``, which returns the next state and the results, for each record of a key.

    Args:
        initial: The state of a key without records. Each key gets a copy of its own.
        function: Returns the next state, and the results. The state None forgets the key.
        output: The stream of the results. They have the timestamps of the records.
        state: The type of the states.
        result: The type of the results.
    """

    def __init__(
        self,
        initial: S,
        function: Callable[[S, Any], tuple[S | None, Iterable[Any]]],
        output: str,
        state: Any,
        result: Any,
    ) -> None:
        self.initial = initial
        self.function = function
        self.output = output
        self.result = result
        # The type argument for S. It defines the type of the state.
        self.__orig_class__ = Update[state]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[list[S]], record: Record[Any]) -> None:
        """Update the state, and produce the results."""
        kept = ctx.state
        if not kept:
            kept.append(deepcopy(self.initial))
        returned = self.function(kept[0], record.value)
        try:
            state, results = returned
        except (TypeError, ValueError) as error:
            raise no_pair(returned, self.function) from error
        # Most records of many programs have no results. Then there is no loop.
        if results.__class__ is not list or results:
            for result in results if results.__class__ is list else each_of(results, self.function):
                ctx.produce(self.output, result)
        if state is None:
            kept.clear()
        else:
            kept[0] = state


class ExpiringUpdate(Computation[Any, list[tuple[int, S]]], Generic[S]):
    """The same, but a state is forgotten when no record of its key has come for a time.

    Invariant: the state has the time at which it ends, which only increases. A record that is older than others, and
    arrives after them, does not shorten the time.

    Args:
        update: What is done with the records.
        state: The type of the states.
        keep: How long a state is kept after a record, in microseconds.
        domain: In event time, after the record's timestamp, and a late one after the low watermark. In processing time,
            after its arrival.

    Raises:
        UsageError: ``keep`` is not positive, or is probably in another unit.
    """

    def __init__(self, update: Update[S], state: Any, keep: Duration, domain: TimeDomain) -> None:
        check_duration("keep", keep)
        self.update = update
        self.keep = keep
        self.domain = domain
        # The type argument for S. It defines the type of the state.
        self.__orig_class__ = ExpiringUpdate[state]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return self.update.declared_outputs()

    def process_record(self, ctx: Context[list[tuple[int, S]]], record: Record[Any]) -> None:
        """Update the state, produce the results, and renew the time."""
        kept = ctx.state
        ends, before = kept[0] if kept else (0, deepcopy(self.update.initial))
        returned = self.update.function(before, record.value)
        try:
            state, results = returned
        except (TypeError, ValueError) as error:
            raise no_pair(returned, self.update.function) from error
        for result in each_of(results, self.update.function):
            ctx.produce(self.update.output, result)
        if state is None:
            ctx.cancel_timer(domain=self.domain)
            del ctx.state
            return
        in_event_time = self.domain is TimeDomain.EVENT_TIME
        since = max(record.timestamp, ctx.watermark) if in_event_time else ctx.now
        ends = min(max(ends, since + self.keep), MAX_TIMESTAMP)
        kept[:] = [(ends, state)]
        # A key that is only to be forgotten holds no watermark back.
        ctx.set_timer(Timestamp(ends), domain=self.domain, hold=Timestamp(MAX_TIMESTAMP))

    def process_timer(self, ctx: Context[list[tuple[int, S]]], timer: Timer) -> None:
        """Forget the state. A timer that an earlier form has set in the other domain only sets one in this domain."""
        kept = ctx.state
        if not kept:
            return
        ends = kept[0][0]
        if timer.domain is self.domain and timer.timestamp >= ends:
            del ctx.state
        else:
            ctx.set_timer(Timestamp(ends), domain=self.domain, hold=Timestamp(MAX_TIMESTAMP))
