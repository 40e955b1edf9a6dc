"""Aggregation of keys too hot for one machine (section 8.4): partial results by shard, then one result by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from millwheel.core.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.codecs import ValueFormat
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.keys import key
from millwheel.sdk.model import Record, Timer
from millwheel.sdk.topology import Topology
from millwheel.windows.aggregates import Aggregator
from millwheel.windows.assigners import Assigner, Window
from millwheel.windows.computation import Aggregate, output_types, result_time
from millwheel.windows.result import Result

__all__ = ["two_phase"]

A = TypeVar("A")


def two_phase(
    topology: Topology,
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

    The first phase spreads each key over several keys by a hash of the record and aggregates there. The second phase
    merges the partial results. Late records count as in :class:`Aggregate` without allowed lateness. A function gives
    the keys of ``source``, so an injector asks a worker for them, unless it is given ``topology=``.

    Args:
        topology: Where the two computations are added.
        name: The name of the second phase. The first phase's name, and its stream's, begin with it.
        source: The stream that is aggregated.
        key_of: A record's key, from its value.
        windows: Which windows a timestamp is in.
        aggregator: How a window's records become one value.
        output: The stream that gets one Result for each key and window.
        shards: Over how many keys each key is spread, and so how many partial results are merged at most.

    Raises:
        UsageError: If ``shards`` is not positive, or as by :class:`Aggregate`.
    """
    if shards < 1:
        raise UsageError(f"shards must be positive, not {shards}")
    partial_stream = f"{name}-partials"

    @cache
    def encode() -> Callable[[Any], bytes]:
        return _encoder_of(topology, source)

    def shard_of(value: Any) -> str:
        return f"{crc32(encode()(value)) % shards}|{key_of(value)}"

    unfinished: Aggregator[Any, Any] = Aggregator(
        aggregator.accumulator, aggregator.new, aggregator.add, aggregator.merge, _same, aggregator.accumulator
    )
    topology.add(
        Aggregate(windows, unfinished, output=partial_stream), name=f"{name}-partial", inputs={source: key(shard_of)}
    )
    topology.add(_Merge(aggregator, output), name=name, inputs={partial_stream: key(_unsharded)})


def _same(value: Any) -> Any:
    return value


def _encoder_of(topology: Topology, stream: str) -> Callable[[Any], bytes]:
    """Encodes a stream's values, equal ones alike in every process: a record that is sent again has the same shard."""
    codec = topology.plan().streams[stream].codec
    assert codec is not None, "a topology that passed its check has a codec for every stream"
    if codec.format is not ValueFormat.MSGPACK:
        return codec.encode
    return msgspec.msgpack.Encoder(enc_hook=list, order="deterministic").encode


def _unsharded(partial: Result[Any]) -> str:
    return partial.key.partition("|")[2]


Merged = dict[tuple[int, int], A]
"""By a window's start and end."""


class _Merge(Computation[Any, Merged[A]]):
    """Joins the shards' partial results, which all carry their window's end as timestamp."""

    def __init__(self, aggregator: Aggregator[A, Any], output: str) -> None:
        self.aggregator = aggregator
        self.output = output
        self.outputs = output_types(aggregator, output, None)
        # What fills A, for the type of the state.
        self.__orig_class__ = _Merge[aggregator.accumulator]  # type: ignore[name-defined]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return self.outputs

    def process_record(self, ctx: Context[Merged[A]], record: Record[Any]) -> None:
        """Merge a partial result into its window."""
        partial: Result[A] = record.value
        window = Window(partial.start, partial.end)
        merged = ctx.state
        if window in merged:
            merged[window] = self.aggregator.merge(merged[window], partial.value)
        else:
            merged[window.bounds] = partial.value
        # One microsecond beyond the partial results' own timestamp: at that watermark none is still to come.
        ctx.set_timer(Timestamp(min(partial.end + 1, MAX_TIMESTAMP)), window.tag, hold=result_time(window))

    def process_timer(self, ctx: Context[Merged[A]], timer: Timer) -> None:
        """Every shard's partial result is in."""
        window = Window.from_tag(timer.tag)
        value = self.aggregator.result(ctx.state.pop(window))
        result = Result(ctx.key, Timestamp(window.start), Timestamp(window.end), value)
        ctx.produce(self.output, result, timestamp=result_time(window))
        if not ctx.state:
            del ctx.state
