"""Percentile watermarks: the progress of time if the last stragglers are left out (section 7.2).

The authority knows the pending work of each computation alone. Records that are still upstream of a computation are
not among its pending work. So, as with low watermarks, the minimum is taken over the computation and its groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from millwheel.client.shards import ShardedWatermarks
from millwheel.model.catalog import LIVE_STATES, dead_letter_writers, outputs_of
from millwheel.model.incarnation import injector_group
from millwheel.model.stream_names import dead_letter_stream
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["PercentileWatermark", "basis_points", "read_percentile", "upstream_of"]


@dataclass(frozen=True, slots=True)
class PercentileWatermark:
    """A percentile watermark, in microseconds.

    ``silent``: how many intervals and injector processes did not report their pending work in time. Their low
    watermarks are used instead."""

    value: int
    silent: int


def basis_points(percentile: float) -> int:
    """Convert ``percentile`` to hundredths of a percent, the authority's unit.

    ValueError unless 0 < percentile <= 100.
    """
    found = round(percentile * 100)
    if not 0 < found <= 10_000:
        raise ValueError(f"a percentile is over 0 and at most 100, with two decimals: not {percentile:g}")
    return found


def upstream_of(records: Iterable[catalog.TopologyRecord], group: str) -> list[str]:
    """``group`` and all groups that its records come from, directly or not.

    ``group`` is a computation's incarnation, or the group of a source. Feedback edges do not count, as in low
    watermarks.
    """
    feeders: dict[str, list[str]] = {}
    inputs: dict[str, list[str]] = {}
    for record in records:
        if record.state not in LIVE_STATES:
            continue
        writers = dead_letter_writers(record.spec)
        for stream in record.spec.streams:
            if stream.injected:
                feeders.setdefault(stream.name, []).append(injector_group(stream.name))
        for computation in record.spec.computations:
            incarnation = record.incarnations[computation.name]
            letters = [dead_letter_stream(record.spec.name)] if computation.name in writers else []
            for name in [*outputs_of(computation), *letters]:
                feeders.setdefault(name, []).append(incarnation)
            inputs[incarnation] = [edge.stream for edge in computation.inputs if not edge.feedback]
    found = [group]
    for one in found:
        for name in inputs.get(one, ()):
            found += [feeder for feeder in feeders.get(name, ()) if feeder not in found]
    return found


async def read_percentile(
    authority: ShardedWatermarks, records: Iterable[catalog.TopologyRecord], group: str, percentile: float
) -> PercentileWatermark:
    """The percentile watermark of ``group``: ``percentile`` percent of the pending timestamps are at or above it
    (7.2).

    The value is heuristic: records below it may still arrive. For the same topologies it never falls.

    Args:
        authority: A client of the low watermark authority.
        records: All topologies, as returned by ``ControlClient.list_topologies``.
        group: A computation's incarnation, or the group of a source.
        percentile: Over 0 and at most 100, with two decimals.

    Raises:
        RequestError: The authority does not answer.
    """
    answers = await asyncio.gather(
        *(_percentile(authority, one, basis_points(percentile)) for one in upstream_of(records, group))
    )
    return PercentileWatermark(min(value for value, _ in answers), sum(silent for _, silent in answers))


async def _percentile(authority: ShardedWatermarks, group: str, points: int) -> tuple[int, int]:
    try:
        answer = await authority.percentile(group, points)
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        return MIN_TIMESTAMP, 0
    return answer.watermark_us, answer.silent_count
