"""Aggregation of keys with too many records for one machine (section 8.4), in two phases.

The first phase computes partial results by shard. The second phase computes one result by key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from millwheel.agg.aggregator import Aggregator
from millwheel.model.time import Timestamp
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.records import Record, Timer
from millwheel.sdk.spreading import spreader
from millwheel.sdk.topology import TopologyGraph
from millwheel.windows.assigners import Assigner, Window
from millwheel.windows.computation import Aggregate, output_types, result_time
from millwheel.windows.result import Result, Row

__all__ = ["MergePartials", "key_without_shard", "partial_aggregate", "two_phase"]

A = TypeVar("A")


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
) -> None:
    """Add a two-phase aggregation of the stream ``source`` to ``topology``: ``name-partial`` and ``name``.

    The first phase divides each key into several keys by a hash of the record, and aggregates there. The second phase
    merges the partial results. Late records count as in :class:`Aggregate` without allowed lateness. The key of
    ``source`` is a function. An injector therefore requests the keys from a worker, unless it has a ``topology=``
    argument.

    Args:
        topology: The topology to extend.
        name: The name of the second phase. The names of the first phase and of its stream begin with it.
        source: The stream to aggregate.
        key_of: Returns a record's key from its value.
        windows: Assigns timestamps to windows.
        aggregator: Computes one value from the records of a window.
        output: The stream of the results: one Result for each key and window.
        shards: The number of keys that each key is divided into. At most this many partial results are merged.

    Raises:
        UsageError: ``shards`` is not positive, or as by :class:`Aggregate`.
    """
    if shards < 1:
        raise UsageError(f"shards must be positive, not {shards}")
    partial_stream = f"{name}-partials"

    spread = spreader(topology, source, shards)

    def shard_of(value: Any) -> str:
        return f"{spread(value)}|{key_of(value)}"

    topology.add(
        partial_aggregate(windows, aggregator, partial_stream), name=f"{name}-partial", inputs={source: key(shard_of)}
    )
    topology.add(MergePartials(aggregator, output), name=name, inputs={partial_stream: key(key_without_shard)})


def partial_aggregate(
    windows: Assigner, aggregator: Aggregator[Any, Any], output: str, too_late: str | None = None
) -> Aggregate[Any]:
    """The first phase: its results are accumulators. Its keys are ``SHARD|KEY``."""
    unfinished: Aggregator[Any, Any] = Aggregator(
        aggregator.accumulator, aggregator.new, aggregator.add, aggregator.merge, _same, aggregator.accumulator
    )
    return _PartialAggregate(windows, unfinished, output=output, too_late=too_late)


class _PartialAggregate(Aggregate[A]):
    """The first phase.

    Its results have the last timestamp within their window. So all of them have arrived at the second phase when the
    low watermark is the window's end. With the end as timestamp, they would have arrived one microsecond later.
    """

    def _wake_at_end(self, ctx: Context[Any], window: Window) -> None:
        ctx.set_timer(Timestamp(window.end), window.tag, hold=self._time_of(window))

    def _time_of(self, window: Window) -> Timestamp:
        return Timestamp(window.end - 1)

    def _key_in_letters(self, key: str, values: Callable[[], Sequence[Any]]) -> str:
        return key.partition("|")[2]


def _same(value: Any) -> Any:
    return value


def key_without_shard(partial: Result[Any]) -> str:
    """The key of a partial result in the second phase."""
    return partial.key.partition("|")[2]


Merged = dict[tuple[int, int], A]
"""By a window's start and end, in microseconds."""


class MergePartials(Computation[Any, Merged[A]]):
    """The second phase: it merges the partial results of all shards. They have the last timestamp within their window.

    Args:
        aggregator: Computes the value of a window.
        output: The stream of the results.
        row: What a result is. By default a Result.
    """

    def __init__(self, aggregator: Aggregator[A, Any], output: str, row: Row | None = None) -> None:
        self.aggregator = aggregator
        self._merge = aggregator.merge
        self.output = output
        self.outputs = output_types(aggregator, output, None, row)
        self._row = Result if row is None else row.make
        # The type argument for A. It defines the type of the state.
        self.__orig_class__ = MergePartials[aggregator.accumulator]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return self.outputs

    def process_record(self, ctx: Context[Merged[A]], record: Record[Any]) -> None:
        """Merge a partial result into its window."""
        partial: Result[A] = record.value
        window = Window(partial.start, partial.end)
        merged = ctx.state
        if window in merged:
            merged[window] = self._merge(merged[window], partial.value)
        else:
            merged[window.bounds] = partial.value
        # One microsecond after the timestamp of the partial results. At that watermark, all of them have arrived.
        ctx.set_timer(Timestamp(record.timestamp + 1), window.tag, hold=result_time(window))

    def process_timer(self, ctx: Context[Merged[A]], timer: Timer) -> None:
        """Produce the result of a window. The partial results of all shards have arrived."""
        window = Window.from_tag(timer.tag)
        value = self.aggregator.result(ctx.state.pop(window))
        result = self._row(ctx.key, Timestamp(window.start), Timestamp(window.end), value, 0)
        ctx.produce(self.output, result, timestamp=result_time(window))
        if not ctx.state:
            del ctx.state

    def _given_up(self, ctx: Context[Merged[A]], timer: Timer) -> None:
        ctx.state.pop(Window.from_tag(timer.tag), None)
        if not ctx.state:
            del ctx.state
