"""Who owns which interval: by load, over machines, and away from workers that are gone (section 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millwheel.core.catalog import ACTIVE_STATES, Catalog
from millwheel.core.catalog import code_of as spec_code_of
from millwheel.core.catalog_keys import worker_key
from millwheel.core.interval_chunks import Chunk
from millwheel.core.interval_table import NOBODY
from millwheel.master.draft import Draft
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = [
    "NO_CODE",
    "Assigner",
    "code_of",
    "draft_assignments",
    "draft_releases",
    "may_run",
    "release",
    "switching_since",
]

_IDLE: Final = 0.01
"""What an interval weighs beside its load: so that idle ones are spread, too."""

_STEP: Final = 0.05
"""Workers whose loads differ by less are taken for equal; then the less loaded machine goes first."""

_MOST_WORKERS: Final = 48
"""The most workers that one transaction gives intervals to: it rests on the registration of each of them."""

_NO_LOADS: Final[Mapping[str, float]] = {}


NO_CODE: Final = ""
"""Of intervals that take no user code, and that any worker may own."""


def code_of(known: Catalog, incarnation: str) -> str | None:
    """The digest of the code that an incarnation runs; None for a stream's log, which runs none.

    A computation that is being removed delivers what it had produced, for which it needs none: ``NO_CODE``.
    """
    found = known.computation(incarnation)
    if found is not None:
        return spec_code_of(found[0].spec, found[1]).digest
    return NO_CODE if known.leaving(incarnation) is not None else None


def may_run(worker: catalog.WorkerRecord, code: str | None) -> bool:
    """Whether a worker may own intervals of that code: one bound to a package runs that alone, and no logs.

    What a removed computation leaves behind goes to any worker: there may be none left that is made for its package.
    """
    return code == NO_CODE or not worker.package or worker.package == code


class Assigner:
    """Gives intervals to live workers: those made for the code, if there are any, and of them the least loaded."""

    def __init__(self, known: Catalog, loads: Mapping[str, float] = _NO_LOADS) -> None:
        """``loads``: what intervals cost, by journal, in cores; those that are not there count as idle."""
        self._known = known
        self._loads = loads
        self._load = dict.fromkeys(sorted(known.workers), 0.0)
        self._machines = dict.fromkeys(map(self._machine, self._load), 0.0)
        self._given: set[str] = set()
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
        if code == NO_CODE:
            return [name for name in fit if not self._known.workers[name].package] or fit
        bound = [name for name in fit if self._known.workers[name].package]
        return bound or fit

    def choose(self, code: str | None, but: str = "") -> str | None:
        """The candidate to own one more interval; None if there is none but ``but``."""
        fit = [name for name in self.candidates(code) if name != but]
        if len(self._given) >= _MOST_WORKERS:
            # Those left out have their turn in the next transaction, which sees them as the least loaded.
            fit = [name for name in fit if name in self._given] or fit
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
        self._given.add(worker)
        draft.rest_on(worker_key(worker))
        interval.sequencer = draft.draw()
        interval.owner.CopyFrom(self._known.workers[worker].endpoint)
        interval.owner.worker_id = worker
        interval.owner_revision = self._known.registration(worker)
        self._weigh(worker, _IDLE + self._loads.get(interval.journal, 0.0))

    def renew(self, interval: catalog.IntervalRecord, code: str | None, draft: Draft) -> None:
        """Give an interval anew: to its owner, unless that may not run the code or others are made for it.

        It is left as it is where the transaction gives to as many others as it may: its turn is in the next one.
        """
        owner = interval.owner.worker_id
        if owner in self.candidates(code):
            if owner not in self._given and len(self._given) >= _MOST_WORKERS:
                return
            self.give(interval, owner, draft)
        else:
            self.assign(interval, code, draft)

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
    since = switching_since(known)
    for incarnation in _active(known):
        table = known.tables.get(incarnation)
        if most == 0 or draft.is_full:
            return
        switching = since.get(incarnation, 0)
        if table is None or known.is_damaged(incarnation):
            continue
        code = code_of(known, incarnation)
        lost = [owner for owner in table.owned if not assigner.lives(*owner)]
        if assigner.choose(code) is None:
            # Those that have no owner are left as they are, without looking at each of them again.
            lost = [owner for owner in lost if owner != NOBODY]
        chunks = table.chunks if switching else table.chunks_of(lost)
        changed = [_assign_chunk(draft, assigner, incarnation, chunk, code, switching) for chunk in chunks]
        most -= any(changed)


def _assign_chunk(
    draft: Draft, assigner: Assigner, incarnation: str, chunk: Chunk, code: str | None, switching: int
) -> bool:
    """``switching``: owners whose sequencer is smaller run what an update has changed."""

    def stays(interval: catalog.IntervalRecord) -> bool:
        return assigner.is_owned(interval) and interval.sequencer >= switching

    if draft.is_full or all(map(stays, chunk.intervals)):
        return False
    intervals = []
    for old in chunk.intervals:
        new = catalog.IntervalRecord()
        new.CopyFrom(old)
        if not assigner.is_owned(new):
            assigner.assign(new, code, draft)
        elif not stays(new):
            assigner.renew(new, code, draft)
        intervals.append(new)
    return draft.put_intervals(incarnation, intervals)


def draft_releases(known: Catalog, draft: Draft, most: int) -> None:
    """Take the owners from the intervals of up to ``most`` incarnations that should have none."""
    active = set(_active(known))
    for incarnation, table in sorted(known.tables.items()):
        if most == 0 or draft.is_full:
            return
        if (
            incarnation not in active
            and not known.is_damaged(incarnation)
            and any(owner != NOBODY for owner in table.owned)
        ):
            release(known, incarnation, draft)
            most -= 1


def release(known: Catalog, incarnation: str, draft: Draft) -> None:
    """Take the owners from the intervals of an incarnation: of as many as the transaction takes.

    What is left over goes by :func:`draft_releases`, once the incarnation is not one that should have owners.
    """
    table = known.tables.get(incarnation)
    if table is None or known.is_damaged(incarnation):
        return
    for chunk in table.chunks_of(owner for owner in table.owned if owner != NOBODY):
        if draft.is_full:
            return
        intervals = []
        for old in chunk.intervals:
            new = catalog.IntervalRecord()
            new.CopyFrom(old)
            new.ClearField("owner")
            new.owner_revision = 0
            intervals.append(new)
        draft.put_intervals(incarnation, intervals)


def _active(known: Catalog) -> list[str]:
    """The incarnations whose intervals should have owners."""
    found = [log.incarnation for _, log in sorted(known.logs.items())]
    for _, record in known.live_topologies():
        if record.state in ACTIVE_STATES:
            found += [record.incarnations[computation.name] for computation in record.spec.computations]
            found += [leaving.incarnation for leaving in record.leaving]
    return found


def switching_since(known: Catalog) -> dict[str, int]:
    """By incarnation that an update has changed: owners whose sequencer is smaller run what was before."""
    found = {}
    for _, record in known.live_topologies():
        found.update({record.incarnations[name]: number for name, number in record.switching.items()})
        found.update({leaving.incarnation: leaving.switching for leaving in record.leaving})
    return found
