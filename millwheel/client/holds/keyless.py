"""Decides whether an injector's records hold its low watermark because they have no key (sections 4.2, 4.5). Pure."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import watermark_pb2 as watermarks

__all__ = ["held_by_key"]


def held_by_key(
    row: watermarks.IntervalWatermark, failing: Iterable[cluster_pb2.ComputationFailures]
) -> tuple[cluster_pb2.ComputationFailures, inspection.KeyFunctionFailure] | None:
    """Return the computation and the key function that an injector process waits for.

    Args:
        row: the authority's row for the process that holds the source's watermark.
        failing: the failures of the consumers of the process's stream.

    Returns:
        None if the records that wait for keys do not hold the watermark. One such case is a process that reports
        nothing, because it may have ended. Another is a low watermark below the timestamps of all these records.
    """
    if row.idle or row.sequencer == 0 or row.hold.kind == watermarks.HoldKind.HOLD_KIND_INJECTOR:
        return None
    for one in failing:
        for key in one.failures.key_functions:
            if any(held.process == row.process and held.oldest_us <= row.watermark_us for held in key.waiting):
                return one, key
    return None
