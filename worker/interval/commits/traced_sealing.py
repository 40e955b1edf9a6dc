"""Sealing with traces: it finds out which ids the productions of sampled records get (docs/tracing.md)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from millwheel.sdk.effects import ProducedColumns
from millwheel.worker.interval.commits.read_runs import places_of_reads
from millwheel.worker.interval.commits.sealing import Sealed, Sealer
from millwheel.worker.interval.entry import IntervalEntry, ProductionRow
from millwheel.worker.interval.hooks.runner import HookBatch
from millwheel.worker.interval.outbox.flows import ProductionBatch
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.interval.traces import IntervalTraces, produced_by

__all__ = ["TracedSealer", "sealer_for"]


class TracedSealer(Sealer):
    """A sealer that reports to the traces what it has sealed. It changes no entry."""

    def __init__(
        self, state: IntervalState, failed: Callable[[bytes, Exception], None], traces: IntervalTraces
    ) -> None:
        super().__init__(state, failed)
        self._traces = traces

    def apply(
        self, sealed: Sealed, batch: HookBatch, changed: list[tuple[bytes, bytes]]
    ) -> tuple[IntervalEntry, list[ProductionBatch]]:
        """Apply the batch to the soft state as part of the commit."""
        traces = self._traces
        if traces.received:
            for receipt, indexes in (*batch.added, *batch.consumed):
                if receipt.delivery.traces is not None and (records := traces.received.get(receipt.delivery)):
                    traces.consumed(sealed.commit, records, indexes)
        entry, outbound = super().apply(sealed, batch, changed)
        if traces.results:
            self._results(batch, entry)
        if traces.marks:
            self._productions_of_marks(batch, entry)
        return entry, outbound

    def _results(self, batch: HookBatch, entry: IntervalEntry) -> None:
        """The entry begins with the results of panes."""
        rows, at = _rows_of(entry), 0
        for one in batch.results:
            if isinstance(one, ProducedColumns):  # of keys without a span
                at += len(one.keys)
                continue
            key, productions = one
            if (span := self._traces.results.pop(key, None)) is not None:
                self._traces.produced(span, rows[at : at + len(productions)])
            at += len(productions)

    def _productions_of_marks(self, batch: HookBatch, entry: IntervalEntry) -> None:
        """Behind results of panes, the entry has the productions of the contexts in their order.

        If it has runs of what was read, these have the first ones of each context. The last traced key ends the search.
        """
        contexts, marks = batch.contexts, self._traces.marks
        sought = sum(key in contexts for key in marks)
        if not sought:
            return
        rows = _rows_of(entry)
        in_runs = self._reads_in_runs(batch)
        at = len(rows) - len(entry.productions) if in_runs else 0
        reads = places_of_reads(contexts) if in_runs else {}
        for one in batch.results:
            at += len(one.keys if isinstance(one, ProducedColumns) else one[1])
        for key, context in contexts.items():
            if not sought:
                return
            count, read = produced_by(context), reads.get(key, range(0))
            if key in marks:
                sought -= 1
                own = [*rows[read.start : read.stop], *rows[at : at + count - len(read)]]
                for mark in marks.pop(key):
                    if mark.context is context:
                        self._traces.produced(mark.span, own[mark.first : mark.last])
            at += count - len(read)


def _rows_of(entry: IntervalEntry) -> list[ProductionRow]:
    """All productions of the entry."""
    if not entry.runs and not entry.tables:
        return entry.productions
    in_runs = chain.from_iterable(run.rows() for run in entry.runs)
    in_tables = chain.from_iterable(table.rows() for table in entry.tables)
    return [*in_runs, *in_tables, *entry.productions]


def sealer_for(state: IntervalState, failed: Callable[[bytes, Exception], None]) -> Sealer:
    """The sealer of an interval. ``failed`` takes a key whose state cannot be encoded."""
    traces = state.meter.traces
    return Sealer(state, failed) if traces is None else TracedSealer(state, failed, traces)
