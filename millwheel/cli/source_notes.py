"""Notes of `millwheel topology validate` about sources: what is valid, and often not meant."""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.connectors.reading import ReadSplits
from millwheel.sdk.plan import Plan

__all__ = ["source_notes"]


def source_notes(plan: Plan) -> Iterator[str]:
    """Yield a note for each source whose records have no event time but that of their reading."""
    for name in sorted(plan.computations):
        reads = plan.computations[name].computation
        if isinstance(reads, ReadSplits) and reads.has_times_of_reading:
            yield (
                f"source {reads.output} has no timestamp=: the event time of a record is the time at which it is read, "
                "and windows are of that time. If that is not meant, give timestamp= to source()"
            )
