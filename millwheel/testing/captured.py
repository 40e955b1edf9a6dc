"""Sinks that a test captures: their records are batched as usual, and no writer is opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from millwheel.connectors.batches import EncodedBatch
from millwheel.connectors.contents import BatchRecords
from millwheel.connectors.writing import BATCHES, WriteBatches
from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.sdk.plan import Plan

__all__ = ["batches_of", "records_of", "refuse_other_names"]


def refuse_other_names(plan: Plan, captured: Iterable[str]) -> None:
    """Raise UsageError for a name that is no sink of the topology."""
    sinks = [name for name, one in plan.computations.items() if isinstance(one.computation, WriteBatches)]
    for name in captured:
        if name not in sinks:
            hint = did_you_mean(name, sinks)
            raise UsageError(f"topology {plan.name!r} has no sink {name!r}{hint}: captured= names one")


def batches_of(sink: str) -> str:
    """The stream of a sink's batches."""
    return sink + BATCHES


def records_of(plan: Plan, sink: str, batches: Iterable[EncodedBatch[Any]]) -> Iterator[tuple[Any, int]]:
    """The values of the batches of a captured sink, as its writer would get them, with their times."""
    writes = plan.computations[sink].computation
    assert isinstance(writes, WriteBatches), "refuse_other_names() refuses others"
    for batch in batches:
        yield from BatchRecords(list(batch.parts(writes.codec)), writes.codec.decode_all, writes.record_type)
