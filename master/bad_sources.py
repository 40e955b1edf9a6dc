"""Sources most of whose records cannot be read, from the workers' last reports: for the health of the cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millwheel.master.health_problems import health_problem
from millwheel.master.load_book import LoadBook
from millwheel.model.catalog import ACTIVE_STATES, Catalog
from millwheel.model.time import hours
from millwheel.rpc.raised_errors import moment
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["bad_source_problems"]

_MANY_BAD: Final = 10
"""Fewer bad records are no problem of the program, however large their share. The alert has the same limit."""
_SHOWN_FOR: Final = hours(24)
"""A source that has read nothing since is named for so long."""
_MAX_ERROR: Final = 200


def bad_source_problems(known: Catalog, book: LoadBook, now: int) -> Iterator[wire.HealthProblem]:
    """Yield a problem for each source of which most of the last records could not be read.

    Args:
        known: The catalog. Only running topologies count.
        book: The workers' reports.
        now: The wall time, in microseconds.
    """
    for one in _merged(book):
        record = known.topologies.get(one.topology)
        runs = record is not None and record.state in ACTIVE_STATES and one.computation in record.incarnations
        if runs and one.bad >= _MANY_BAD and 2 * one.bad > one.records and now - one.last_us <= _SHOWN_FOR:
            text = (
                f"source {one.stream}: {one.bad:,} of the {one.records:,} records since {moment(one.since_us)} could "
                f"not be read. The last error: {_shortened(one.last_error)}. Stream {one.bad_stream} has them, each "
                f"with its error: `millwheel stream tail {one.bad_stream}`. See whether timestamp= and the type of the "
                "records are right, and update the topology. A stream of another name reads the source from the "
                "beginning"
            )
            yield health_problem(text, "MillwheelSourceUnreadable", one.topology, one.computation)


def _merged(book: LoadBook) -> list[inspection.SourceReads]:
    """Add up what the workers say of each source. The newest report has the last error."""
    whole: dict[tuple[str, str], inspection.SourceReads] = {}
    for worker in book.workers.values():
        for part in worker.load.sources:
            place = (part.topology, part.computation)
            if (before := whole.get(place)) is None:
                whole[place] = inspection.SourceReads()
                whole[place].CopyFrom(part)
                continue
            records, bad = before.records + part.records, before.bad + part.bad
            since = min(before.since_us, part.since_us)
            if part.last_us > before.last_us:
                before.CopyFrom(part)
            before.records, before.bad, before.since_us = records, bad, since
    return [whole[place] for place in sorted(whole)]


def _shortened(error: str) -> str:
    line = " ".join(error.split())
    return line if len(line) <= _MAX_ERROR else f"{line[:_MAX_ERROR]}…"
