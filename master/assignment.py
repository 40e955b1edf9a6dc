"""Assignment of intervals to workers: by load, spread over machines, and away from lost workers (section 7.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from millwheel.master.change_plan import PlanBuilder
from millwheel.model.catalog import ACTIVE_STATES, Catalog
from millwheel.model.catalog import code_of as spec_code_of
from millwheel.model.catalog_keys import worker_key
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_chunks import IntervalChunk
from millwheel.model.interval_map import NO_OWNER
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = [
    "NO_CODE",
    "IntervalAssigner",
    "add_assignments",
    "add_releases",
    "code_of",
    "may_run",
    "release",
    "switching_since",
]

_IDLE_LOAD: Final = 0.01
"""The weight of an interval beside its load, in cores, so that idle intervals are spread too."""

_EQUAL_LOADS: Final = 0.05
"""A difference of loads, in cores, below which workers count as equal. Then the less loaded machine goes first."""

MAX_WORKERS_PER_TRANSACTION: Final = 48
"""The maximum number of workers that one transaction assigns to. It compares the registration of each of them."""

_NO_LOADS: Final[Mapping[str, float]] = {}


NO_CODE: Final = ""
"""The code of intervals that need no user code. Any worker may own them."""


def code_of(known: Catalog, incarnation: IncarnationId) -> str | None:
    """Return the digest of an incarnation's code; None for a stream's log, which runs none.

    A removed computation only delivers what it had produced. It needs no code for that: ``NO_CODE``.
    """
    found = known.computation(incarnation)
    if found is not None:
        return spec_code_of(found[0].spec, found[1]).digest
    return NO_CODE if known.removed_computation(incarnation) is not None else None


def may_run(worker: catalog.WorkerRecord, code: str | None) -> bool:
    """Return whether a worker may own intervals of that code.

    A worker bound to a package runs only that package, and no logs.

    Any worker may own the intervals of a removed computation, since none may be left for its package.
    """
    return code == NO_CODE or not worker.package or worker.package == code


class IntervalAssigner:
    """Assigns intervals to live workers: those bound to the code if any exist, and of those the least loaded."""

    def __init__(self, known: Catalog, loads: Mapping[str, float] = _NO_LOADS) -> None:
        """``loads``: the cost of intervals by journal, in cores. An interval without an entry counts as idle."""
        self._known = known
        self._loads = loads
        self._load = dict.fromkeys(sorted(known.workers), 0.0)
        self._machine = {name: known.workers[name].daemon or name for name in self._load}
        self._machines = dict.fromkeys(self._machine.values(), 0.0)
        self._candidates: dict[str | None, dict[str, None]] = {}
        self._given: set[str] = set()
        for interval_map in known.maps.values():
            for (worker, registration), owned in interval_map.owned.items():
                if known.lives(worker, registration):
                    self._weigh(
                        worker, len(owned) * _IDLE_LOAD + (sum(loads.get(one, 0.0) for one in owned) if loads else 0)
                    )

    def is_owned(self, interval: catalog.IntervalRecord) -> bool:
        """Whether the owner is alive, and has been alive since the assignment of the interval."""
        return self._known.lives(interval.owner.worker_id, interval.owner_revision)

    def candidates(self, code: str | None) -> Collection[str]:
        """Return the workers preferred for that code: those bound to it, otherwise those bound to no package."""
        if (found := self._candidates.get(code)) is None:
            found = self._candidates[code] = dict.fromkeys(self._find_candidates(code))
        return found

    def _find_candidates(self, code: str | None) -> list[str]:
        fit = [name for name in self._load if may_run(self._known.workers[name], code)]
        if code == NO_CODE:
            return [name for name in fit if not self._known.workers[name].package] or fit
        bound = [name for name in fit if self._known.workers[name].package]
        return bound or fit

    def choose(self, code: str | None, but: str = "") -> str | None:
        """Return the best candidate for one more interval, other than ``but``; None if there is none."""
        fit = self.candidates(code)
        if len(self._given) >= MAX_WORKERS_PER_TRANSACTION:
            # Other workers have their turn in the next transaction, where they are the least loaded.
            fit = [name for name in self._given if name in fit and name != but] or fit
        fit = [name for name in fit if name != but]
        return min(fit, key=self._rank) if fit else None

    def assign(self, interval: catalog.IntervalRecord, code: str | None, builder: PlanBuilder) -> None:
        """Assign ``interval`` to an owner under a fresh sequencer.

        If no worker may run it, it keeps the old sequencer.
        """
        worker = self.choose(code)
        if worker is None:
            interval.ClearField("owner")
            interval.owner_revision = 0
        else:
            self.give(interval, worker, builder)

    def give(self, interval: catalog.IntervalRecord, worker: str, builder: PlanBuilder) -> None:
        """Make ``worker`` the owner under a fresh sequencer, for as long as its present registration lasts."""
        self._given.add(worker)
        builder.note_owner(interval.owner.worker_id, worker)
        builder.rest_on(worker_key(worker))
        interval.sequencer = builder.draw()
        interval.owner.CopyFrom(self._known.workers[worker].endpoint)
        interval.owner.worker_id = worker
        interval.owner_revision = self._known.registration(worker)
        self._weigh(worker, _IDLE_LOAD + self._loads.get(interval.journal, 0.0))

    def renew(self, interval: catalog.IntervalRecord, code: str | None, builder: PlanBuilder) -> None:
        """Assign an interval again: to its owner, unless the owner may not run the code or others are bound to it.

        The interval stays unchanged if the transaction already assigns to the maximum number of other workers. The
        next transaction handles it.
        """
        owner = interval.owner.worker_id
        if owner in self.candidates(code):
            if owner not in self._given and len(self._given) >= MAX_WORKERS_PER_TRANSACTION:
                return
            self.give(interval, owner, builder)
        else:
            self.assign(interval, code, builder)

    def _weigh(self, worker: str, weight: float) -> None:
        self._load[worker] += weight
        self._machines[self._machine[worker]] += weight

    def _rank(self, worker: str) -> tuple[int, float, float, str]:
        load = self._load[worker]
        return int(load / _EQUAL_LOADS), self._machines[self._machine[worker]], load, worker


def add_assignments(known: Catalog, builder: PlanBuilder, most: int, loads: Mapping[str, float] = _NO_LOADS) -> None:
    """Put up to ``most`` interval maps in order: every interval that should have an owner gets a live one.

    Of a large map, one transaction takes as many chunks as fit. The next transaction takes the rest.
    """
    assigner = IntervalAssigner(known, loads)
    since = switching_since(known)
    for incarnation in _active(known):
        interval_map = known.maps.get(incarnation)
        if most == 0 or builder.is_full:
            return
        switching = since.get(incarnation, 0)
        if interval_map is None or known.is_damaged(incarnation):
            continue
        code = code_of(known, incarnation)
        lost = [owner for owner in interval_map.owned if not known.lives(*owner)]
        if assigner.choose(code) is None:
            # No worker may run this code: skip intervals without an owner instead of checking each again.
            lost = [owner for owner in lost if owner != NO_OWNER]
        chunks = interval_map.chunks if switching else interval_map.chunks_of(lost)
        changed = [_assign_chunk(builder, assigner, incarnation, chunk, code, switching) for chunk in chunks]
        most -= any(changed)


def _assign_chunk(
    builder: PlanBuilder,
    assigner: IntervalAssigner,
    incarnation: IncarnationId,
    chunk: IntervalChunk,
    code: str | None,
    switching: int,
) -> bool:
    """``switching``: owners with a smaller sequencer run the version from before an update."""

    def stays(interval: catalog.IntervalRecord) -> bool:
        return assigner.is_owned(interval) and interval.sequencer >= switching

    if builder.is_full or all(map(stays, chunk.intervals)):
        return False
    intervals = []
    for old in chunk.intervals:
        new = catalog.IntervalRecord()
        new.CopyFrom(old)
        if not assigner.is_owned(new):
            assigner.assign(new, code, builder)
        elif not stays(new):
            assigner.renew(new, code, builder)
        intervals.append(new)
    return builder.put_intervals(incarnation, intervals)


def add_releases(known: Catalog, builder: PlanBuilder, most: int) -> None:
    """Remove the owners from the intervals of up to ``most`` incarnations that should have none."""
    active = set(_active(known))
    for incarnation, interval_map in sorted(known.maps.items()):
        if most == 0 or builder.is_full:
            return
        if (
            incarnation not in active
            and not known.is_damaged(incarnation)
            and any(owner != NO_OWNER for owner in interval_map.owned)
        ):
            release(known, incarnation, builder)
            most -= 1


def release(known: Catalog, incarnation: IncarnationId, builder: PlanBuilder) -> None:
    """Remove the owners from the intervals of an incarnation, as many as the transaction takes.

    :func:`add_releases` handles the rest, once the incarnation is no longer one that should have owners.
    """
    interval_map = known.maps.get(incarnation)
    if interval_map is None or known.is_damaged(incarnation):
        return
    for chunk in interval_map.chunks_of(owner for owner in interval_map.owned if owner != NO_OWNER):
        if builder.is_full:
            return
        intervals = []
        for old in chunk.intervals:
            new = catalog.IntervalRecord()
            new.CopyFrom(old)
            new.ClearField("owner")
            new.owner_revision = 0
            intervals.append(new)
        builder.put_intervals(incarnation, intervals)


def _active(known: Catalog) -> list[IncarnationId]:
    """Return the incarnations whose intervals should have owners."""
    found = [log.incarnation for _, log in sorted(known.logs.items())]
    for _, record in known.live_topologies():
        if record.state in ACTIVE_STATES:
            found += [record.incarnations[computation.name] for computation in record.spec.computations]
            found += [removed.incarnation for removed in record.removed]
    return found


def switching_since(known: Catalog) -> dict[IncarnationId, int]:
    """Return, by updated incarnation, the sequencer below which owners still run the version from before the update."""
    found = {}
    for _, record in known.live_topologies():
        found.update({record.incarnations[name]: number for name, number in record.switching.items()})
        found.update({removed.incarnation: removed.switching for removed in record.removed})
    return found
