"""Hooks of sampled records, with their spans. Other records run as they do without traces (docs/tracing.md).

Invariant: a batch has the same records, in the same order and with the same effects, as without traces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from millwheel.model.traces import Operation
from millwheel.sdk.context import Context
from millwheel.sdk.growing.pages import PagesNeededError
from millwheel.sdk.scope import PAGES_TAG
from millwheel.worker.interval.blocked_key_table import Item, RecordItem, TimerItem
from millwheel.worker.interval.hooks.firing import Firing
from millwheel.worker.interval.hooks.runner import HookOutcomes, Runner
from millwheel.worker.interval.intake import DeliveryReceipt
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.traces import IntervalTraces
from millwheel.worker.traces import ReceivedRecord

__all__ = ["TracedFiring", "TracedOutcomes", "TracedRunner", "parts_apart"]


class TracedOutcomes:
    """Notes how the running traced hook ends, and passes the outcome on."""

    def __init__(self, outcomes: HookOutcomes, traces: IntervalTraces) -> None:
        self._outcomes = outcomes
        self._traces = traces

    def failed(self, key: bytes, item: Item, error: BaseException) -> None:
        """The hook of ``key`` raised for ``item``."""
        self._traces.failed(error)
        self._outcomes.failed(key, item, error)

    def returned(self, key: bytes, context: Context[Any], item: Item, result: Any) -> None:
        """The hook of ``key`` returned a value for ``item``."""
        self._traces.awaits(context)
        self._outcomes.returned(key, context, item, result)

    def result_failed(self, key: bytes, timer: TimerItem, error: BaseException) -> None:
        """The result of a pane by columns cannot be made now. No hook was called."""
        self._outcomes.result_failed(key, timer, error)

    def undo_together(self, records: Sequence[RecordItem]) -> None:
        """A call for several records failed. No sampled record was among its records."""
        self._outcomes.undo_together(records)


class TracedRunner(Runner):
    """Runs a sampled record apart from the others of its delivery."""

    def __init__(self, state: IntervalState, outcomes: HookOutcomes, traces: IntervalTraces) -> None:
        super().__init__(state, outcomes)
        self._traces = traces

    def run_hooks(self, receipt: DeliveryReceipt, indexes: Sequence[int], alone: bool) -> tuple[int, int, int]:
        if receipt.delivery.traces is None or not (records := self._traces.received.get(receipt.delivery)):
            return super().run_hooks(receipt, indexes, alone)
        scope, batch, size = self._setup.scope, self.batch, self.batch.size
        budget = self._setup.settings.batch_bytes - size
        ran = waits = calls = 0
        for part in parts_apart(indexes, records):
            # Each part gets the budget that the whole would have: so the batch ends at the same record.
            opened, batch.size = batch.size - size, size
            record = records.get(part[0])
            if record is None:
                done = super().run_hooks(receipt, part, alone)
            else:
                done = self._run_traced(receipt, part[0], alone, record)
            batch.size += opened
            ran, waits, calls = ran + done[0], waits + done[1], calls + done[2]
            if done[0] < len(part) or scope.produced_bytes > budget:
                break
        return ran, waits, calls

    def _run_traced(
        self, receipt: DeliveryReceipt, index: int, alone: bool, record: ReceivedRecord
    ) -> tuple[int, int, int]:
        traces, contexts, delivery = self._traces, self.batch.contexts, receipt.delivery
        key = delivery.keys[index]
        span = traces.spans.start(Operation.PROCESS, delivery.stream, record.span.context)
        traces.begin(span, contexts.get(key))
        with span.current():
            done = super().run_hooks(receipt, (index,), alone)
        error = traces.finish(key, contexts.get(key), done[2] > 0)
        consumed = self.batch.consumed_of(receipt)[-1:] == [index]
        record.handled = record.handled or consumed or error is not None
        if error == PagesNeededError.__qualname__:
            record.span.event("reads more of the state")
        elif error:
            record.span.event("hook failed", error=error)
        elif error is None:
            record.span.event("dropped as late" if consumed else "waits for its key")
        elif self._setup.program.handles_timers:
            traces.remember_cause(key, span.context)
        return done


class TracedFiring(Firing):
    """Gives the firing of a timer a span, if a sampled record may have caused it."""

    def __init__(self, state: IntervalState, runner: Runner, outcomes: HookOutcomes, traces: IntervalTraces) -> None:
        super().__init__(state, runner, outcomes)
        self._traces = traces

    def fire(self, key: bytes, timer: TimerItem) -> bool:
        """Fire one timer that is in the table. Returns whether its hook was called."""
        traces = self._traces
        causes = traces.causes.get(key)
        if causes is None or timer[2] == PAGES_TAG:
            return super().fire(key, timer)
        contexts = self.runner.batch.contexts
        span = traces.spans.start(Operation.FIRE, traces.computation, causes[0], links=causes[1:])
        traces.begin(span, contexts.get(key))
        with span.current():
            called = super().fire(key, timer)
        if traces.finish(key, contexts.get(key), called) == "":
            traces.causes.pop(key, None)
        return called


def parts_apart(indexes: Sequence[int], traced: Collection[int]) -> Iterator[Sequence[int]]:
    """The indexes in their order: each traced one alone, and what is between them."""
    first = 0
    for at in sorted(indexes.index(index) for index in traced if index in indexes):
        if first < at:
            yield indexes[first:at]
        yield indexes[at : at + 1]
        first = at + 1
    if first < len(indexes):
        yield indexes[first:]
