"""Computations whose work waits, with the reason as far as the workers' last reports show it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from millwheel.master.health_problems import health_problem
from millwheel.master.load_book import LoadBook
from millwheel.master.views import names_of
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import Duration, format_duration, seconds
from millwheel.model.wording import counted, named
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["backlog_problems", "interval_backlog"]

_BEHIND_AFTER_SECONDS: Final = 60.0
"""A computation is behind if its oldest work has waited so long. It is the limit of the alert MillwheelWorkStuck."""
_BUSY: Final = 0.8
"""In cores: a process that works so much of its time has no time left, because it also reads and writes."""


def backlog_problems(
    known: Catalog, book: LoadBook, explained: Collection[tuple[str, str]]
) -> Iterator[cluster.HealthProblem]:
    """Yield a problem for each computation whose queue is long, with a remedy.

    A computation that only waits for the ACKs of its consumers is left out: these are behind, or fail.

    Args:
        known: The catalog. Reports of earlier owners do not count.
        book: The workers' reports.
        explained: Computations with another problem that explains it, such as a hot key. They are left out.
    """
    busy = {name: sum(one.busy for one in report.load.intervals) for name, report in book.workers.items()}
    for incarnation, place in sorted(names_of(known).items(), key=lambda pair: pair[1]):
        if place in explained:
            continue
        behind = [(one, load) for one, load in _waiting(known, book, incarnation) if _is_behind(load)]
        if behind:
            owners = sorted({one.owner.worker_id for one, _ in behind})
            text = _text("/".join(place), [load for _, load in behind], owners, busy)
            yield health_problem(text, "MillwheelWorkStuck", *place)


def interval_backlog(known: Catalog, book: LoadBook, incarnation: IncarnationId, journal: str) -> str:
    """Return what waits in an interval, at which worker and for how long. Empty: nothing is known to wait."""
    for one, load in _waiting(known, book, incarnation):
        if one.journal == journal:
            waited = format_duration(Duration(seconds(load.system_lag_seconds)))
            records = counted(load.queued_records, "record")
            return f"{records} of its interval wait at worker {one.owner.worker_id}, the oldest work for {waited}"
    return ""


def _waiting(
    known: Catalog, book: LoadBook, incarnation: IncarnationId
) -> Sequence[tuple[catalog.IntervalRecord, inspection.IntervalLoad]]:
    """Return the intervals whose present owners report that records wait."""
    damaged = incarnation in known.maps and known.is_damaged(incarnation)
    return () if damaged else book.together(known, incarnation).waiting


def _is_behind(load: inspection.IntervalLoad) -> bool:
    return load.system_lag_seconds > _BEHIND_AFTER_SECONDS


def _text(name: str, loads: list[inspection.IntervalLoad], owners: list[str], busy: dict[str, float]) -> str:
    waited = format_duration(Duration(seconds(max(load.system_lag_seconds for load in loads))))
    queued = counted(sum(load.queued_records for load in loads), "record")
    rate = sum(load.records_per_second for load in loads)
    where = named(owners)
    if all(busy.get(owner, 0.0) >= _BUSY for owner in owners):
        idle = sorted(name for name, cores in busy.items() if cores < _BUSY / 2)
        remedy = (
            f"Its workers ({where}) are busy all the time, and {named(idle)} not. Balancing moves intervals there. If "
            f"it has too few, run `millwheel interval split {name}`"
            if idle
            else f"Its workers ({where}) are busy all the time. Start more workers, and balancing moves intervals "
            "there. Without more, it catches up by itself if fewer records come than it takes"
        )
    else:
        remedy = (
            f"Its workers ({where}) have time left, so a hook, the store, a consumer or the machine is slow. See "
            f"`millwheel topology describe {name.partition('/')[0]}` and the dashboards"
        )
    return (
        f"computation {name} is behind: its oldest work has waited for {waited}. {queued} wait, and it takes "
        f"{rate:.0f} a second. {remedy}"
    )
