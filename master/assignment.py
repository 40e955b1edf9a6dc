"""Who owns which interval: by load, over machines, and away from workers that are gone (section 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millwheel.core.catalog import ACTIVE_STATES, Catalog
from millwheel.core.catalog_keys import worker_key
from millwheel.core.interval_chunks import Chunk
from millwheel.master.draft import Draft
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["Assigner", "code_of", "draft_assignments", "may_run", "unassigned"]

_IDLE: Final = 0.01
"""What an interval weighs beside its load: so that idle ones are spread, too."""

_STEP: Final = 0.05
"""Workers whose loads differ by less are taken for equal; then the less loaded machine goes first."""

_NO_LOADS: Final[Mapping[str, float]] = {}


def code_of(known: Catalog, incarnation: str) -> str | None:
    """The digest of the code that an incarnation runs; None for a stream's log, which runs none."""
    found = known.computation(incarnation)
    return None if found is None else found[0].spec.code.digest


def may_run(worker: catalog.WorkerRecord, code: str | None) -> bool:
    """Whether a worker may own intervals of that code: one bound to a package runs that alone, and no logs."""
    return not worker.package or worker.package == code


class Assigner:
    """Gives intervals to live workers: those made for the code, if there are any, and of them the least loaded."""

    def __init__(self, known: Catalog, loads: Mapping[str, float] = _NO_LOADS) -> None:
        """``loads``: what intervals cost, by journal, in cores; those that are not there count as idle."""
        self._known = known
        self._loads = loads
        self._load = dict.fromkeys(sorted(known.workers), 0.0)
        self._machines = dict.fromkeys(map(self._machine, self._load), 0.0)
        for table in known.tables.values():
            for (worker, registration), owned in table.owned.items():
                if self.lives(worker, registration):
                    self._weigh(
                        worker, len(owned) * _IDLE + (sum(loads.get(one, 0.0) for one in owned) if loads else 0)
                    )

    def is_owned(self, interval: catalog.IntervalRecord) -> bool:
        """Whether the owner is alive, and has been ever since the interval was given to it."""
        return self.lives(interval.owner.worker_id, interval.owner_revision)

    def lives(self, worker: str, registration: int) -> bool:
        """Whether a worker is alive, under the registration that was created at that revision."""
        return worker in self._known.workers and registration == self._known.registration(worker)

    def candidates(self, code: str | None) -> list[str]:
        """The workers that should own intervals of that code: the ones bound to it, else the ones bound to none."""
        fit = [name for name in self._load if may_run(self._known.workers[name], code)]
        bound = [name for name in fit if self._known.workers[name].package]
        return bound or fit

    def choose(self, code: str | None, but: str = "") -> str | None:
        """The candidate to own one more interval; None if there is none but ``but``."""
        fit = [name for name in self.candidates(code) if name != but]
        return min(fit, key=self._rank) if fit else None

    def assign(self, interval: catalog.IntervalRecord, code: str | None, draft: Draft) -> None:
        """Give ``interval`` an owner under a fresh sequencer; none, under the old one, while nobody may run it."""
        worker = self.choose(code)
        if worker is None:
            interval.ClearField("owner")
            interval.owner_revision = 0
        else:
            self.give(interval, worker, draft)

    def give(self, interval: catalog.IntervalRecord, worker: str, draft: Draft) -> None:
        """Make ``worker`` the owner under a fresh sequencer, for as long as its present registration lasts."""
        draft.rest_on(worker_key(worker))
        interval.sequencer = draft.draw()
        interval.owner.CopyFrom(self._known.workers[worker].endpoint)
        interval.owner.worker_id = worker
        interval.owner_revision = self._known.registration(worker)
        self._weigh(worker, _IDLE + self._loads.get(interval.journal, 0.0))

    def _weigh(self, worker: str, weight: float) -> None:
        self._load[worker] += weight
        self._machines[self._machine(worker)] += weight

    def _machine(self, worker: str) -> str:
        return self._known.workers[worker].daemon or worker

    def _rank(self, worker: str) -> tuple[int, float, float, str]:
        load = self._load[worker]
        return int(load / _STEP), self._machines[self._machine(worker)], load, worker


def draft_assignments(known: Catalog, draft: Draft, most: int, loads: Mapping[str, float] = _NO_LOADS) -> None:
    """Put up to ``most`` interval maps in order: every interval that should have an owner gets a live one.

    Of large maps as many chunks as a transaction takes; the rest follows in the next one.
    """
    assigner = Assigner(known, loads)
    for incarnation in _active(known):
        table = known.tables.get(incarnation)
        if most == 0 or draft.is_full:
            return
        if table is None or all(assigner.lives(*owner) for owner in table.owned):
            continue
        code = code_of(known, incarnation)
        changed = [_assign_chunk(draft, assigner, incarnation, chunk, code) for chunk in table.chunks]
        most -= any(changed)


def _assign_chunk(draft: Draft, assigner: Assigner, incarnation: str, chunk: Chunk, code: str | None) -> bool:
    if draft.is_full or all(assigner.is_owned(interval) for interval in chunk.intervals):
        return False
    intervals = []
    for old in chunk.intervals:
        new = catalog.IntervalRecord()
        new.CopyFrom(old)
        if not assigner.is_owned(new):
            assigner.assign(new, code, draft)
        intervals.append(new)
    return draft.put_intervals(incarnation, intervals)


def unassigned(record: catalog.IntervalMapRecord) -> catalog.IntervalMapRecord:
    """The same intervals without owners."""
    new = catalog.IntervalMapRecord()
    new.CopyFrom(record)
    for interval in new.intervals:
        interval.ClearField("owner")
        interval.owner_revision = 0
    return new


def _active(known: Catalog) -> list[str]:
    """The incarnations whose intervals should have owners."""
    found = [log.incarnation for _, log in sorted(known.logs.items())]
    for _, record in known.live_topologies():
        if record.state in ACTIVE_STATES:
            found += [record.incarnations[computation.name] for computation in record.spec.computations]
    return found
