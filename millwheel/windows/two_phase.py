"""Aggregation of keys with too many records for one machine (section 8.4), in two phases.

The first phase computes partial results by shard. The second phase computes one result by key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from millwheel.agg.aggregator import Aggregator
from millwheel.model.time import Duration, TimeDomain, Timestamp
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.records import Record
from millwheel.sdk.spreading import spreader
from millwheel.sdk.topology import TopologyGraph
from millwheel.windows.assigners import Assigner, Window
from millwheel.windows.computation import Aggregate, Pane, Panes, drop_record
from millwheel.windows.early import Early, check_early
from millwheel.windows.result import Result

__all__ = ["MergePartials", "PartialAggregate", "check_spread", "key_without_shard", "partial_aggregate", "two_phase"]

A = TypeVar("A")
_NO_LATENESS: Final = Duration(0)


def two_phase(
    topology: TopologyGraph,
    name: str,
    *,
    source: str,
    key_of: Callable[[Any], str],
    windows: Assigner,
    aggregator: Aggregator[Any, Any],
    output: str,
    shards: int = 16,
    early: Early | None = None,
    allowed_lateness: Duration = _NO_LATENESS,
    too_late: str | None = None,
) -> None:
    """Add a two-phase aggregation of the stream ``source`` to ``topology``: ``name-partial`` and ``name``.

    The first phase divides each key into several keys by a hash of the record, and aggregates there. The second phase
    merges the partial results. Early results and late records are as in :class:`Aggregate`. The key of ``source`` is a
    function. An injector therefore requests the keys from a worker, unless it has a ``topology=`` argument.

    Args:
        topology: The topology to extend.
        name: The name of the second phase. The names of the first phase and of its stream begin with it.
        source: The stream to aggregate.
        key_of: Returns a record's key from its value.
        windows: Assigns timestamps to windows.
        aggregator: Computes one value from the records of a window.
        output: The stream of the results: one Result for each key and window.
        shards: The number of keys that each key is divided into.
        early: When both phases produce results before a window's end: ``windows.every(mw.seconds(10))``.
        allowed_lateness: How long a window is kept after its end, in microseconds of event time.
        too_late: The stream of records for which no window is kept.

    Raises:
        UsageError: ``shards`` is not positive, each record would have a result, or as by :class:`Aggregate`.
    """
    check_spread(f"two_phase({name!r}, shards={shards})", shards, early, output, too_late)
    partial_stream = f"{name}-partials"

    spread = spreader(topology, source, shards)

    def shard_of(value: Any) -> str:
        return f"{spread(value)}|{key_of(value)}"

    first = partial_aggregate(
        windows, aggregator, partial_stream, early=early, allowed_lateness=allowed_lateness, too_late=too_late
    )
    merge = MergePartials(windows, aggregator, output=output, early=early, allowed_lateness=allowed_lateness)
    topology.add(first, name=f"{name}-partial", inputs={source: key(shard_of)})
    topology.add(merge, name=name, inputs={partial_stream: key(key_without_shard)})


def check_spread(step: str, shards: int, early: Early | None, output: str, too_late: str | None) -> None:
    """Raise UsageError for no shard, one name of two streams, or a result after each record."""
    if not isinstance(shards, int) or isinstance(shards, bool) or shards < 1:
        raise UsageError(f"{step} takes a positive number of shards")
    if too_late == output:
        raise UsageError(f"{step} has its results and its too_late= in one stream {output!r}: use two streams")
    check_early(early)
    if early is not None and not early.period:
        raise UsageError(
            f"{step} has a result after each record, so each would come to one machine after all: take "
            "early=windows.every(mw.seconds(1)), or one phase"
        )


def partial_aggregate(
    windows: Assigner,
    aggregator: Aggregator[Any, Any],
    output: str,
    *,
    early: Early | None = None,
    allowed_lateness: Duration = _NO_LATENESS,
    too_late: str | None = None,
) -> Aggregate[Any]:
    """The first phase: its results are accumulators. Its keys are ``SHARD|KEY``."""
    unfinished: Aggregator[Any, Any] = Aggregator(
        aggregator.accumulator, aggregator.new, aggregator.add, aggregator.merge, _same, aggregator.accumulator
    )
    return PartialAggregate(
        windows, unfinished, output=output, early=early, allowed_lateness=allowed_lateness, too_late=too_late
    )


class PartialAggregate(Aggregate[A]):
    """The first phase. Each of its results has only the records since the one before: they are forgotten with it.

    So the second phase merges each result once, whether it is early, of the window's end, or of a late record.

    The results have the last timestamp within their window. So all of them have arrived at the second phase when the
    low watermark is the window's end. With the end as timestamp, they would have arrived one microsecond later. The
    result of a late record is late, too. Until its ACK the output watermark does not rise. So the second phase gets it
    while it keeps the window, if it keeps it for as long.
    """

    def _set_end_timer(self, ctx: Context[Panes[A]], window: Window) -> None:
        ctx.set_timer(Timestamp(window.end), window.tag, hold=self._hold_of(ctx, window))

    def _time_of(self, window: Window) -> Timestamp:
        return Timestamp(window.end - 1)

    def _produce(self, ctx: Context[Panes[A]], window: Window, pane: Pane[A]) -> None:
        super()._produce(ctx, window, pane)
        self._forget(ctx, window, pane)

    def _forget(self, ctx: Context[Panes[A]], window: Window, pane: Pane[A]) -> None:
        ctx.state.pop(window, None)
        if pane.early_at:
            ctx.cancel_timer(window.tag, domain=TimeDomain.PROCESSING_TIME)

    def _produce_early(self, ctx: Context[Panes[A]], window: Window, pane: Pane[A]) -> None:
        self._produce(ctx, window, pane)
        ctx.cancel_timer(window.tag)

    def _open_late(self, ctx: Context[Panes[A]], window: Window, accumulator: A) -> None:
        self._produce(ctx, window, Pane(-1, accumulator))

    def _end(self, ctx: Context[Panes[A]], window: Window) -> None:
        if window in ctx.state:  # its result was given up
            super()._end(ctx, window)

    def _key_in_letters(self, key: str, values: Callable[[], Sequence[Any]]) -> str:
        return key.partition("|")[2]


def _same(value: Any) -> Any:
    return value


def key_without_shard(partial: Result[Any]) -> str:
    """The key of a partial result in the second phase."""
    return partial.key.partition("|")[2]


class MergePartials(Aggregate[A]):
    """The second phase: it merges the partial results of all shards. They have the last timestamp within their window.

    It keeps and revises windows as :class:`Aggregate` does, and takes the same arguments as the first phase. Its
    records are parts of windows. A part of an early result may have waited for the period of ``early`` in each phase.
    """

    def process_record(self, ctx: Context[Panes[A]], record: Record[Any]) -> None:
        """Merge a partial result into its window."""
        partial: Result[A] = record.value
        panes, window = ctx.state, Window(partial.start, partial.end)
        pane = panes.get(window)
        if pane is not None:
            pane.accumulator = self.aggregator.merge(pane.accumulator, partial.value)
        elif window.end > ctx.watermark:
            pane = panes[window.bounds] = Pane(-1, partial.value)
            self._set_end_timer(ctx, window)
        elif self._is_kept(ctx, window, record.timestamp):
            self._open_late(ctx, window, partial.value)
            return
        else:  # an update has made allowed_lateness shorter
            drop_record(ctx, record, self.too_late)
            return
        if self.early is not None or record.late:
            self._revise(ctx, window, pane)
