"""Computations whose work waits, with the reason as far as the workers' last reports show it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from millwheel.master.event_log import readable_events
from millwheel.master.health_problems import health_problem
from millwheel.master.load_book import LoadBook
from millwheel.master.missing_workers import missing_text, missing_workers
from millwheel.master.trends import SOON_SECONDS, Pace, time_left
from millwheel.master.views import names_of
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.time import Duration, Timestamp, format_duration, seconds
from millwheel.model.wording import counted, named
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["backlog_problems", "interval_backlog"]

_BEHIND_AFTER_SECONDS: Final = 60.0
"""A computation is behind if its oldest work has waited so long. It is the limit of the alert MillwheelWorkStuck."""
_BUSY: Final = 0.8
"""In cores: a process that works so much of its time has no time left, because it also reads and writes."""
_STALLED: Final = 0.3
"""A process that does not get to run for this share of the time lacks a CPU."""
_RECENT: Final = seconds(60)
"""So long after a change of intervals, nothing is said of how it goes on."""
_LONG_SECONDS: Final = 600.0
"""After so long a wait, a remedy is given all the same: a large computation may be balanced each minute."""


def backlog_problems(
    known: Catalog, book: LoadBook, explained: Collection[tuple[str, str]], now: Timestamp
) -> Iterator[cluster.HealthProblem]:
    """Yield a problem for each computation whose queue is long, with a remedy.

    A computation that only waits for the ACKs of its consumers is left out: these are behind, or fail.

    Args:
        known: The catalog. Reports of earlier owners do not count.
        book: The workers' reports.
        explained: Computations with another problem that explains it, such as a hot key. They are left out.
        now: The wall time.
    """
    found = []
    for incarnation, place in sorted(names_of(known).items(), key=lambda pair: pair[1]):
        behind = [] if place in explained else [one for one in _waiting(known, book, incarnation) if _is_behind(one[1])]
        if behind:
            found.append((place, behind))
    if not found:
        return
    events = list(readable_events(known.events))
    missing, changed = missing_workers(events, known.workers, now), _recent_changes(events, now)
    for place, behind in found:
        reports = [report for one, _ in behind if (report := book.report_of(one)) is not None]
        paces = [pace for report in reports if (pace := report.pace) is not None]
        come = [report.come for report in reports]
        backlog = _Backlog(
            "/".join(place),
            [load for _, load in behind],
            sorted({one.owner.worker_id for one, _ in behind}),
            paces if len(paces) == len(behind) else None,
            sum(one for one in come if one is not None) if None not in come else None,
            place in changed,
        )
        yield health_problem(backlog.text(book, missing), "MillwheelWorkStuck", *place)


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


@dataclass(frozen=True, slots=True)
class _Backlog:
    """What waits in the intervals of one computation that are behind.

    ``paces``: what comes and goes in each of them. None: of at least one of them, this cannot be said yet.
    """

    name: str
    loads: Sequence[inspection.IntervalLoad]
    owners: Sequence[str]
    paces: Sequence[Pace] | None
    come: float | None
    changed: bool

    @property
    def waited(self) -> float:
        """For how many seconds the oldest work has waited."""
        return max(load.system_lag_seconds for load in self.loads)

    def text(self, book: LoadBook, missing: Sequence[cluster.DepartedWorker]) -> str:
        """Say what waits, how it goes on, and what to do."""
        waited = format_duration(Duration(seconds(self.waited)))
        queued = counted(sum(load.queued_records for load in self.loads), "record")
        return (
            f"computation {self.name} is behind: its oldest work has waited for {waited}. {queued} wait"
            f"{self._course(book, missing)}"
        )

    def _course(self, book: LoadBook, missing: Sequence[cluster.DepartedWorker]) -> str:
        """Say how it goes on: the number of records says less, because it swings."""
        start = f" {_start(missing)}" if missing else ""
        if self.paces is None:
            rate = f", and it takes {sum(load.records_per_second for load in self.loads):.0f} a second"
        else:
            taken = sum(pace.taken for pace in self.paces)
            rate = f". {taken:.0f} are taken in a second"
            if self.come is not None:
                rate = f". {self.come:.0f} come in a second, and {taken:.0f} are taken"
            left = time_left(self.paces)
            if left is not None:
                about = format_duration(Duration(seconds(max(1.0, round(left)))))
                calm = " It needs no action." if left <= SOON_SECONDS and not missing else ""
                return f"{rate}: it catches up in about {about}.{calm}{start or ' More workers make that shorter'}"
            rate += _verdict(self.paces)
        if self.changed and self.waited <= _LONG_SECONDS:
            return f"{rate}. Its intervals were moved or split within the last minute: look again in a minute.{start}"
        return f"{rate}. {self._remedy(book, missing)}"

    def _remedy(self, book: LoadBook, missing: Sequence[cluster.DepartedWorker]) -> str:
        busy = {name: sum(one.busy for one in report.load.intervals) for name, report in book.workers.items()}
        where, name = named(self.owners), self.name
        if any(busy.get(owner, 0.0) < _BUSY for owner in self.owners):
            return (
                f"Its workers ({where}) have time left, so a hook, the store, a consumer or the machine is slow. See "
                f"`millwheel topology describe {name.partition('/')[0]}` and the dashboards"
            )
        reports = [(busy[one], report.load) for one, report in book.workers.items() if one in self.owners]
        how = ", mostly waiting in hooks" if all(_waits_in_hooks(*one) for one in reports) else ""
        state = f"Its workers ({where}) are busy all the time{how}"
        idle = sorted(name for name, cores in busy.items() if cores < _BUSY / 2)
        if idle:
            return (
                f"{state}, and {named(idle)} not. Balancing moves intervals there. If it has too few, run `millwheel "
                f"interval split {name}`"
            )
        if missing:
            return f"{state}. {_start(missing)}. Balancing moves intervals there"
        without = "" if self.paces else ". Without more, it catches up by itself if fewer records come than it takes"
        return f"{state}. Start more workers, and balancing moves intervals there{without}"


def _waits_in_hooks(busy: float, load: inspection.GetWorkerLoadResponse) -> bool:
    """Whether hooks wait for something outside, and not for a CPU."""
    return load.cpu < busy / 2 and load.stalled < _STALLED


def _verdict(paces: Sequence[Pace]) -> str:
    """Say how many intervals fall further behind. Nothing is said of those of which it is not clear."""
    growing = sum(pace.grows for pace in paces)
    if not growing:
        return ""
    if growing == len(paces):
        return ": it does not catch up"
    do = "does" if growing == 1 else "do"
    return f". {growing:,} of its {len(paces):,} intervals that are behind {do} not catch up"


def _start(missing: Sequence[cluster.DepartedWorker]) -> str:
    """Advise to start workers. An autoscaler, or a maintenance, may have stopped them."""
    those = "it" if len(missing) == 1 else "them"
    return f"{missing_text(missing)}: start {those}, unless that is on purpose"


def _recent_changes(events: Iterable[catalog.EventRecord], now: Timestamp) -> set[tuple[str, str]]:
    """Return the computations whose intervals were moved, split or merged within the last minute."""
    return {
        (event.topology, event.subject)
        for event in events
        if event.kind.startswith("interval.") and now - event.at_us <= _RECENT
    }
