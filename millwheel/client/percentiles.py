"""Percentile watermarks: how far time is when the last stragglers are left out (section 7.2).

The authority tells of each computation by itself. What is still upstream of a computation is no work of its own yet;
so, as with low watermarks, the least counts of its own value and of all that its records come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from millwheel.client.shards import ShardedWatermarks
from millwheel.core.catalog import LIVE_STATES, dead_letter_stream, dead_letter_writers, injector_sender, outputs_of
from millwheel.core.time import MIN_TIMESTAMP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["PercentileWatermark", "basis_points", "read_percentile", "upstream_of"]


@dataclass(frozen=True, slots=True)
class PercentileWatermark:
    """Microseconds. ``silent``: how many intervals and injector processes did not tell what they have at work in time,
    and count by their low watermarks."""

    value: int
    silent: int


def basis_points(percentile: float) -> int:
    """``percentile`` in hundredths of a percent, as the authority counts; ValueError unless it is over 0, up to 100."""
    found = round(percentile * 100)
    if not 0 < found <= 10_000:
        raise ValueError(f"a percentile is over 0 and at most 100, with two decimals: not {percentile:g}")
    return found


def upstream_of(records: Iterable[catalog.TopologyRecord], sender: str) -> list[str]:
    """``sender`` (a computation's incarnation, or a source's sender) and all that its records come from.

    Feedback edges take no part, as in low watermarks.
    """
    feeders: dict[str, list[str]] = {}
    inputs: dict[str, list[str]] = {}
    for record in records:
        if record.state not in LIVE_STATES:
            continue
        writers = dead_letter_writers(record.spec)
        for stream in record.spec.streams:
            if stream.injected:
                feeders.setdefault(stream.name, []).append(injector_sender(stream.name))
        for computation in record.spec.computations:
            incarnation = record.incarnations[computation.name]
            letters = [dead_letter_stream(record.spec.name)] if computation.name in writers else []
            for name in [*outputs_of(computation), *letters]:
                feeders.setdefault(name, []).append(incarnation)
            inputs[incarnation] = [edge.stream for edge in computation.inputs if not edge.feedback]
    found = [sender]
    for one in found:
        for name in inputs.get(one, ()):
            found += [feeder for feeder in feeders.get(name, ()) if feeder not in found]
    return found


async def read_percentile(
    authority: ShardedWatermarks, records: Iterable[catalog.TopologyRecord], sender: str, percentile: float
) -> PercentileWatermark:
    """The watermark of ``sender`` that ``percentile`` percent of the timestamps at work are at or above (7.2).

    ``records``: all topologies, as ``ControlClient.list_topologies`` gives them. Heuristic: records may come behind it.
    For the same topologies it never goes back. RequestError if the authority does not answer.
    """
    told = await asyncio.gather(
        *(_told(authority, one, basis_points(percentile)) for one in upstream_of(records, sender))
    )
    return PercentileWatermark(min(value for value, _ in told), sum(silent for _, silent in told))


async def _told(authority: ShardedWatermarks, sender: str, points: int) -> tuple[int, int]:
    try:
        told = await authority.percentile(sender, points)
    except RequestError as error:
        if error.code is not FailureCode.NOT_FOUND:
            raise
        return MIN_TIMESTAMP, 0
    return told.watermark_us, told.silent_count
