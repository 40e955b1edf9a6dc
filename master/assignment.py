"""Who owns which interval: round-robin by load, and away from workers that are gone (section 7.1)."""

from __future__ import annotations

from millwheel.core.catalog import ACTIVE_STATES, Catalog
from millwheel.core.catalog_keys import worker_key
from millwheel.master.draft import Draft
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["Assigner", "draft_assignments", "unassigned"]


class Assigner:
    """Gives intervals to the live worker that owns the fewest; equals in the order of their ids."""

    def __init__(self, known: Catalog) -> None:
        self._known = known
        self._load = dict.fromkeys(sorted(known.workers), 0)
        for table in known.tables.values():
            for interval in table.record.intervals:
                if self.is_owned(interval):
                    self._load[interval.owner.worker_id] += 1

    def is_owned(self, interval: catalog.IntervalRecord) -> bool:
        """Whether the owner is alive, and has been ever since the interval was given to it."""
        worker = interval.owner.worker_id
        return worker in self._known.workers and interval.owner_revision == self._known.registration(worker)

    def assign(self, interval: catalog.IntervalRecord, draft: Draft) -> None:
        """Give ``interval`` an owner under a fresh sequencer; none, under the old one, while no worker lives."""
        if not self._load:
            interval.ClearField("owner")
            interval.owner_revision = 0
            return
        worker = min(self._load, key=lambda one: (self._load[one], one))
        self._load[worker] += 1
        draft.rest_on(worker_key(worker))
        interval.sequencer = draft.draw()
        interval.owner.CopyFrom(self._known.workers[worker].endpoint)
        interval.owner.worker_id = worker
        interval.owner_revision = self._known.registration(worker)


def draft_assignments(known: Catalog, draft: Draft, most: int) -> None:
    """Put up to ``most`` interval maps in order: every interval that should have an owner gets a live one."""
    assigner = Assigner(known)
    for incarnation in _active(known):
        if most == 0:
            return
        old = known.interval_map(incarnation)
        if old is None:
            continue
        new = catalog.IntervalMapRecord()
        new.CopyFrom(old)
        for interval in new.intervals:
            if not assigner.is_owned(interval):
                assigner.assign(interval, draft)
        if new != old:
            draft.put_map(incarnation, new)
            most -= 1


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
