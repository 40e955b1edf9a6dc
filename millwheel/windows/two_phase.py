"""Aggregation of keys too hot for one machine (section 8.4): partial results by shard, then one result by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import msgspec

from millwheel.core.time import Timestamp
from millwheel.sdk.codecs import Codec
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.keys import key
from millwheel.sdk.model import Record, Timer
from millwheel.sdk.topology import Topology
from millwheel.windows.aggregates import Aggregator
from millwheel.windows.assigners import Assigner
from millwheel.windows.computation import Aggregate
from millwheel.windows.result import Result

__all__ = ["two_phase"]


def two_phase(
    topology: Topology,
    name: str,
    *,
    source: str,
    key_of: Callable[[Any], str],
    windows: Assigner,
    aggregator: Aggregator[Any, Any],
    output: str,
    result_type: Any,
    shards: int = 16,
) -> None:
    """Add a two-phase aggregation of ``source`` to ``topology``: ``name-partial`` and ``name``.

    The first phase spreads each key over ``shards`` keys by a hash of the record and aggregates there; the
    second merges at most ``shards`` partial results per key and window. ``output`` gets Result records of
    ``result_type`` (what the aggregator's ``result`` returns), one per key and window.
    """
    partial_stream = f"{name}-partials"

    def shard_of(value: Any) -> str:
        return f"{crc32(msgspec.msgpack.encode(value)) % shards}|{key_of(value)}"

    unfinished: Aggregator[Any, Any] = Aggregator(
        aggregator.accumulator, aggregator.new, aggregator.add, aggregator.merge, lambda accumulator: accumulator
    )
    topology.add(
        Aggregate(windows, unfinished, output=partial_stream),
        name=f"{name}-partial",
        inputs={source: key(shard_of)},
        outputs={partial_stream: Result[aggregator.accumulator]},  # type: ignore[name-defined]
    )
    topology.add(
        _Merge(aggregator, output),
        name=name,
        inputs={partial_stream: key(_unsharded)},
        outputs={output: Result[result_type]},
    )


def _unsharded(partial: Result[Any]) -> str:
    return partial.key.partition("|")[2]


class _Merge(Computation[Any, dict[int, Any]]):
    """Joins the shards' partial results, which all carry their window's end as timestamp."""

    def __init__(self, aggregator: Aggregator[Any, Any], output: str) -> None:
        self.aggregator = aggregator
        self.output = output
        encoder = msgspec.msgpack.Encoder()
        decoder = msgspec.msgpack.Decoder(dict[int, tuple[int, aggregator.accumulator]])  # type: ignore[name-defined]
        self.state_codec = Codec(encoder.encode, decoder.decode, dict)

    def process_record(self, ctx: Context[dict[int, Any]], record: Record[Any]) -> None:
        """Merge a partial result into its window."""
        partial: Result[Any] = record.value
        _, merged = ctx.state.get(partial.start, (0, None))
        joined = partial.value if merged is None else self.aggregator.merge(merged, partial.value)
        ctx.state[partial.start] = (partial.end, joined)
        # One microsecond beyond the partial results' own timestamp: at that watermark none is still to come.
        ctx.set_timer(Timestamp(partial.end + 1), str(partial.start), hold=partial.end)

    def process_timer(self, ctx: Context[dict[int, Any]], timer: Timer) -> None:
        """Every shard's partial result is in."""
        start = int(timer.tag)
        end, merged = ctx.state.pop(start)
        result = Result(ctx.key, Timestamp(start), Timestamp(end), self.aggregator.result(merged))
        ctx.produce(self.output, result, timestamp=Timestamp(end))
        if not ctx.state:
            del ctx.state
