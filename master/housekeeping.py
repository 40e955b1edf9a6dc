"""What the master does without a request: it ends drains and updates, assigns owners and collects garbage (7.1). Pure.

One plan at a time is carried out, the most urgent first. It is made from the newest catalog, again for each attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from millwheel.coordination.contract import DamagedValueError
from millwheel.master import garbage
from millwheel.master.assignment import add_assignments, add_releases
from millwheel.master.change_plan import ChangePlan
from millwheel.master.draining import DrainWatch
from millwheel.master.messages import Progress
from millwheel.master.restores import RestoresInProgress
from millwheel.master.topology_plans import PlanInputs, TopologyPlanner
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, hours, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["Housekeeping"]

_KEEP_CANCELLED: Final = hours(24)
"""How long a cancelled topology is still listed, and a retired query known."""
_DROP_PAUSE: Final = seconds(2)
"""How long nothing is dropped after a failure of the store or the authority."""


class Housekeeping:
    """The work of one term that no request asks for, and the observations that it follows from.

    Attributes:
        drains: The observations of draining topologies.
    """

    def __init__(self, inputs: Callable[[], PlanInputs], restores: RestoresInProgress) -> None:
        """
        Args:
            inputs: Returns what plans are made from now.
            restores: The restores of this term. What others have left is dropped.
        """
        self.drains = DrainWatch(inputs().settings.drain_grace)
        self._inputs = inputs
        self._restores = restores
        self._delivered: set[str] = set()
        """Removed computations, by incarnation, that have delivered all that they produced."""
        self._observed_at = Timestamp(0)
        self._drops_at = Timestamp(0)
        """Nothing is dropped before this time."""
        self._tidy_at = -1
        """The shape of the catalog in which nothing was left to do. -1: something may be."""

    # Observations.

    def begin_drain(self, topology: str) -> None:
        """Forget observations of an earlier topology of this name, but keep those of a drain in progress."""
        record = self._inputs().known.topologies.get(topology)
        if record is not None and record.state == catalog.TOPOLOGY_STATE_RUNNING:
            self.drains.forget(topology)

    def observe(self, progress: Progress) -> None:
        """Record the progress of a topology that drains, or that computations were removed from."""
        inputs = self._inputs()
        self.drains.observe(inputs.known, progress, inputs.now)
        record = inputs.known.topologies.get(progress.topology)
        for removed in record.removed if record is not None else ():
            # A watermark of plus infinity never passes pending productions, so all of them have been delivered.
            if progress.watermarks.get(removed.incarnation, MIN_TIMESTAMP) >= MAX_TIMESTAMP:
                self._delivered.add(removed.incarnation)

    def due_observations(self) -> list[str]:
        """The topologies whose progress is requested now. Time may also have made something garbage."""
        inputs = self._inputs()
        if inputs.now < self._observed_at + inputs.settings.observe_every:
            return []
        self._observed_at = inputs.now
        known, before, due, draining = inputs.known, _forget_before(inputs), list[str](), list[str]()
        for name, record in known.topologies.items():
            if record.state == catalog.TOPOLOGY_STATE_DRAINING:
                draining.append(name)
                due.append(name)
            elif record.state == catalog.TOPOLOGY_STATE_RUNNING and record.removed:
                due.append(name)
            elif record.state == catalog.TOPOLOGY_STATE_CANCELLED and record.state_changed_at_us < before:
                self._tidy_at = -1
        self.drains.keep(draining)
        if any(retired_at < before for retired_at in known.retired_queries.values()):
            self._tidy_at = -1
        return due

    def draining_for(self, topology: str) -> list[str]:
        """Describe what a topology still drains, as text for operators. Empty if it does not drain."""
        record = self._inputs().known.topologies.get(topology)
        draining = record is not None and record.state == catalog.TOPOLOGY_STATE_DRAINING
        return self.drains.waiting_for(topology) if draining else []

    # Time.

    def drops_failed(self, now: Timestamp) -> None:
        """The store or the authority has failed to drop something."""
        self._drops_at = Timestamp(now + _DROP_PAUSE)

    def set_back(self, now: Timestamp) -> None:
        """The wall clock was set back to ``now``."""
        self._observed_at = min(self._observed_at, now)
        self._drops_at = min(self._drops_at, now)

    # Plans.

    def next_plan(self) -> tuple[Callable[[], ChangePlan], ChangePlan] | None:
        """The most urgent plan, with the function that makes it again. None: nothing is to be done now."""
        for due in (self._ended_drains, self._delivered_removals):
            plan = _unless_damaged(due)
            if plan.puts:
                return due, plan
        inputs = self._inputs()
        if self._tidy_at == inputs.known.shape_version:
            return None
        waits = False
        for make in (
            self._assignments,
            self._releases,
            lambda: TopologyPlanner(self._inputs()).end_updates(),
            lambda: TopologyPlanner(self._inputs()).logs.create_missing(),
            self._retired_streams,
            self._garbage,
            self._retired_journals,
            lambda: self._restores.collect(self._inputs().known),
            self._cancelled_topologies,
            self._retired_queries,
        ):
            plan = _unless_damaged(make)
            if plan.clears and inputs.now < self._drops_at:
                waits = True
            elif plan.puts or plan.deletes:
                return make, plan
        self._tidy_at = -1 if waits else inputs.known.shape_version
        return None

    def _ended_drains(self) -> ChangePlan:
        inputs = self._inputs()
        for name, record in inputs.known.live_topologies():
            draining = record.state == catalog.TOPOLOGY_STATE_DRAINING and not record.removed
            if draining and self.drains.is_through(name):
                return TopologyPlanner(inputs).drained(name)
        return ChangePlan()

    def _delivered_removals(self) -> ChangePlan:
        if not self._delivered:
            return ChangePlan()
        inputs = self._inputs()
        plan = TopologyPlanner(inputs).drop_delivered(self._delivered)
        if not plan.puts:
            removed = {one.incarnation for _, record in inputs.known.live_topologies() for one in record.removed}
            self._delivered &= removed
        return plan

    def _assignments(self) -> ChangePlan:
        inputs = self._inputs()
        builder = inputs.builder()
        add_assignments(inputs.known, builder, inputs.settings.maps_per_transaction, inputs.loads)
        return builder.plan()

    def _releases(self) -> ChangePlan:
        inputs = self._inputs()
        builder = inputs.builder()
        add_releases(inputs.known, builder, inputs.settings.maps_per_transaction)
        return builder.plan()

    def _retired_streams(self) -> ChangePlan:
        inputs = self._inputs()
        return garbage.retire_streams(inputs.known, inputs.settings.maps_per_transaction, inputs.unusable)

    def _garbage(self) -> ChangePlan:
        inputs = self._inputs()
        return garbage.collect_garbage(inputs.known, inputs.settings.maps_per_transaction)

    def _retired_journals(self) -> ChangePlan:
        inputs = self._inputs()
        return garbage.drop_retired(inputs.known, inputs.settings.maps_per_transaction)

    def _cancelled_topologies(self) -> ChangePlan:
        inputs = self._inputs()
        return garbage.forget_cancelled(inputs.known, _forget_before(inputs))

    def _retired_queries(self) -> ChangePlan:
        inputs = self._inputs()
        return garbage.forget_queries(inputs.known, _forget_before(inputs))


def _forget_before(inputs: PlanInputs) -> Timestamp:
    return Timestamp(inputs.now - _KEEP_CANCELLED)


def _unless_damaged(make: Callable[[], ChangePlan]) -> ChangePlan:
    """Return the plan, or an empty plan while a value that it depends on is damaged."""
    try:
        return make()
    except DamagedValueError:
        return ChangePlan()
