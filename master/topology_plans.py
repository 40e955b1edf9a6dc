"""One function per request: it turns the current catalog into a plan or a refusal (section 7.1)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from millwheel.errors import Problem
from millwheel.master.assignment import IntervalAssigner, release
from millwheel.master.change_plan import ChangePlan, PlanBuilder
from millwheel.master.forks import refuse_fork
from millwheel.master.log_plans import LogPlanner
from millwheel.master.messages import (
    CancelTopology,
    DrainTopology,
    PauseTopology,
    RestoreTopology,
    ResumeTopology,
    SetTopologyQuota,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.master.new_maps import new_map
from millwheel.master.quotas import check_intervals, check_quota
from millwheel.master.settings import MasterSettings
from millwheel.master.updating import (
    changed_computations,
    keep_previous,
    other_specs,
    plain_spec,
    same_spec,
    update_problems,
)
from millwheel.master.validation import validate
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import ACTIVE_STATES, LIVE_STATES, Catalog, code_of, incarnations_of
from millwheel.model.incarnation import IncarnationId, injector_group
from millwheel.model.interval_map import initial_intervals
from millwheel.model.keys import KeyInterval
from millwheel.model.time import Timestamp
from millwheel.model.wording import state_name
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.unknown_names import UnknownNameError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["PlanInputs", "TopologyPlanner", "name_taken", "refuse_problems", "refuse_unknown_topology"]

_MAX_CANCELLATIONS: Final = 8
"""How many requests to cancel a topology of one name are remembered."""


def refuse_problems(name: str, problems: Sequence[Problem]) -> None:
    """Raise RequestError with the problems of a topology, if there are any."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"topology {name!r} has {count}",
            reason="TOPOLOGY_INVALID",
            problems=list(problems),
        )


def refuse_unknown_topology(name: str, known: Catalog) -> NoReturn:
    """Raise NOT_FOUND with the nearest existing name, or DamagedValueError if the topology's record cannot be read."""
    known.check_readable(keys.topology_key(name))
    remedy = "`millwheel topology list` shows those that there are"
    raise UnknownNameError("topology", name, {one: one for one in known.topologies}, remedy, "TOPOLOGY_UNKNOWN")


def name_taken(known: catalog.TopologyRecord) -> RequestError:
    """The error for a restore under the name of a topology that exists."""
    name = known.spec.name
    return RequestError(
        FailureCode.ALREADY_EXISTS,
        f"topology {name!r} is {state_name(known.state)} already",
        f"give up its state by `millwheel topology cancel {name}` first, or restore under another name "
        "(--as) or into another cluster",
        reason="NAME_TAKEN",
    )


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What plans are made from.

    ``known``: the newest catalog. ``now``: the wall time. ``unusable``: no number up to this one is drawn. ``loads``:
    the cost of intervals by journal, in cores.
    """

    known: Catalog
    settings: MasterSettings
    now: Timestamp
    unusable: int
    loads: Mapping[str, float]

    def builder(self) -> PlanBuilder:
        """The builder of a new plan."""
        return PlanBuilder(self.known, self.unusable)


class TopologyPlanner:
    """Plans for topologies, based on one version of the catalog.

    It has many methods: one for each request, and for what no request asks for.
    """

    def __init__(self, inputs: PlanInputs) -> None:
        self._known = inputs.known
        self._settings = inputs.settings
        self._now = inputs.now
        self._builder = inputs.builder()
        self._assigner = IntervalAssigner(inputs.known, inputs.loads)
        self.logs = LogPlanner(inputs.known, inputs.now, self._builder, self._assigner)
        """Plans for logs."""

    def submit(self, request: SubmitTopology) -> ChangePlan:
        """Plan a new topology. Each computation gets an incarnation: a never reused id for journals and state."""
        spec = request.spec
        known = self._known.topologies.get(spec.name)
        if known is not None and self._is_repetition(request, known):
            return ChangePlan(answer=lambda: self._known.topologies[spec.name])
        refuse_problems(spec.name, validate(spec, self._known))
        record = catalog.TopologyRecord(
            spec=spec,
            version=known.version + 1 if known is not None else 1,
            state=catalog.TOPOLOGY_STATE_RUNNING,
            submitted_at_us=self._now,
            version_at_us=self._now,
            state_changed_at_us=self._now,
            request_id=request.request_id,
            cancelled_by=known.cancelled_by if known is not None else (),
            quota=known.quota if known is not None and known.HasField("quota") else None,
        )
        check_intervals(self._known, record, len(spec.computations) * len(self._first_intervals()))
        self._begin_lives(record)
        for computation in spec.computations:
            self._add(record, computation)
        self._builder.put(keys.topology_key(spec.name), record)
        self.logs.end_earlier(spec)
        self.logs.create_needed(spec)
        return self._builder.plan(
            lambda: self._known.topologies[spec.name], drop_injectors=self._earlier_injectors(spec)
        )

    def restore(self, request: RestoreTopology) -> ChangePlan:
        """Plan the topology of a snapshot. Its incarnations exist in the store, and belong to nothing else.

        The injected streams continue their lives of the snapshot: an injector that sends a record again, which was in
        before the snapshot, sends a duplicate.
        """
        spec = request.record.spec
        known = self._known.topologies.get(spec.name)
        if known is not None and known.state in LIVE_STATES:
            if known.incarnations == request.record.incarnations:
                # A transaction of unknown outcome has taken effect.
                return ChangePlan(answer=lambda: self._known.topologies[spec.name])
            raise name_taken(known)
        refuse_problems(spec.name, validate(spec, self._known))
        refuse_fork(self._known, request.record, renamed=request.renamed)
        record = catalog.TopologyRecord()
        record.CopyFrom(request.record)
        record.submitted_at_us = record.state_changed_at_us = self._now
        record.ClearField("previous")  # a snapshot has the code of the present version alone
        if known is not None:
            record.version = max(record.version, known.version) + 1
            record.cancelled_by.extend(one for one in known.cancelled_by if one not in record.cancelled_by)
            # What an operator allows is a fact of this cluster, as in a later submission.
            record.ClearField("quota")
            if known.HasField("quota"):
                record.quota.CopyFrom(known.quota)
        # The counter is written, so all later numbers are above those in the journals.
        self._builder.draw()
        self._builder.put(keys.topology_key(spec.name), record)
        for incarnation, interval_map in request.maps.items():
            self._builder.put_map(incarnation, interval_map, stored=True)
        injectors = self._earlier_injectors(spec)
        self.logs.end_earlier(spec)
        self._builder.delete(keys.restore_key(request.number))
        for log in request.logs:
            self.logs.restore(log)
        self._set_cursors(spec, request.batches)
        self.logs.create_needed(spec)
        return self._builder.plan(lambda: self._known.topologies[spec.name], drop_injectors=injectors)

    def _set_cursors(self, spec: specs.TopologySpec, batches: Sequence[catalog.BatchCursorRecord]) -> None:
        """Set the cursors of queries back to what the restored receivers have (G1).

        Invariant: a batch at or below its query's cursor is in all receivers. A cursor from after the snapshot would
        break it: the tasks of later batches would send nothing. A query that an operator retired stays retired.
        """
        restored = {one.query for one in batches}
        injected = tuple(f"/{stream.name}" for stream in spec.streams if stream.injected)
        for query in sorted(self._known.batches.keys() - restored - self._known.retired_queries.keys()):
            if injected and query.endswith(injected):
                self._builder.delete(keys.batch_key(query))
        for cursor in batches:
            if cursor.query not in self._known.retired_queries:
                self._builder.put(keys.batch_key(cursor.query), cursor)

    def _add(self, record: catalog.TopologyRecord, computation: specs.ComputationSpec) -> None:
        """Create a computation's incarnation, with owners if its topology has any."""
        code = code_of(record.spec, computation).digest
        intervals = self._first_intervals()
        owned = record.state in ACTIVE_STATES
        record.incarnations[computation.name] = new_map(
            self._builder, self._assigner, computation.name, record.spec.name, intervals, code, owned=owned
        )

    def change(self, request: UpdateTopology | PauseTopology | ResumeTopology | SetTopologyQuota) -> ChangePlan:
        """Plan an update, a pause, a resumption or another quota of a topology."""
        match request:
            case UpdateTopology():
                return self.update(request)
            case PauseTopology():
                return self.pause(request)
            case ResumeTopology():
                return self.resume(request)
            case SetTopologyQuota():
                return self.set_quota(request)

    def update(self, request: UpdateTopology) -> ChangePlan:
        """Plan to add, change and remove computations in one transaction. Owners follow, interval by interval.

        Unchanged computations keep their incarnation. Changed and removed ones are taken over under fresh sequencers.
        The number drawn here is smaller than the sequencer of every owner that knows the new version.
        """
        spec = plain_spec(request.spec)
        name = spec.name
        record = self._record(name)
        if request.request_id and request.request_id == record.request_id and spec == record.spec:
            return ChangePlan(answer=lambda: self._known.topologies[name])
        self._refuse_update(record, request)
        others = other_specs(name, self._known)
        refuse_problems(name, [*validate(spec, self._known), *update_problems(record.spec, spec, others)])
        if spec == record.spec:
            return ChangePlan(answer=lambda: self._known.topologies[name])
        number = self._builder.draw()
        staying = {computation.name for computation in spec.computations}
        for computation in record.spec.computations:
            if computation.name not in staying:
                incarnation = record.incarnations.pop(computation.name)
                record.switching.pop(computation.name, None)
                record.removed.add(spec=computation, incarnation=incarnation, switching=number)
        for changed in changed_computations(record.spec, spec):
            record.switching[changed] = number
        keep_previous(record, spec)
        record.spec.CopyFrom(spec)
        self._begin_lives(record)
        record.version += 1
        record.version_at_us = self._now
        record.request_id = request.request_id
        added = len(spec.computations) - len(record.incarnations)
        check_intervals(self._known, record, added * len(self._first_intervals()))
        for computation in spec.computations:
            if computation.name not in record.incarnations:
                self._add(record, computation)
        self._builder.put(keys.topology_key(name), record)
        self.logs.end_earlier(spec)
        self.logs.keep_as_declared(spec)
        self.logs.create_needed(spec)
        return self._builder.plan(lambda: self._known.topologies[name], drop_injectors=self._earlier_injectors(spec))

    def _earlier_injectors(self, spec: specs.TopologySpec) -> tuple[tuple[str, int], ...]:
        """Delete the injectors of streams that are re-created before their earlier injectors were forgotten (G7).

        They are deleted in this transaction, and before it at the authority. Their watermark reports become void.
        """
        back = {stream.name for stream in spec.streams if stream.injected} - self._known.streams().keys()
        left = [place for place in sorted(self._known.injectors) if place[0] in back]
        for place in left:
            self._builder.delete(keys.injector_key(*place))
        up_to = self._builder.drawn_before
        return tuple((injector_group(stream), up_to) for stream in sorted({stream for stream, _ in left}))

    def _begin_lives(self, record: catalog.TopologyRecord) -> None:
        """State for each injected stream of the topology when its present life began.

        Invariant: a number identifies one life of a stream, and it is above all sequencers of the former lives. A
        stream lives while a live topology injects it. So an update can end a life, and a later one begin the next (G1,
        G7, G8).
        """
        living, floors = self._known.injector_lives(), self._known.injector_floors()
        record.injected_since.clear()
        for stream in record.spec.streams:
            group = injector_group(stream.name)
            if stream.injected and group in floors:
                record.injected_since[stream.name] = floors[group]
            elif stream.injected and group not in living:
                record.injected_since[stream.name] = self._builder.drawn_before + 1

    @staticmethod
    def _refuse_update(record: catalog.TopologyRecord, request: UpdateTopology) -> None:
        name, expected = record.spec.name, request.expected_version
        if record.state not in (catalog.TOPOLOGY_STATE_RUNNING, catalog.TOPOLOGY_STATE_PAUSED):
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"topology {name!r} is {state_name(record.state)}, and only one that runs or is paused can be updated",
                "submit it instead, once the name is free (`millwheel topology cancel`)",
                reason="NOT_RUNNING",
            )
        if expected and expected != record.version:
            raise RequestError(
                FailureCode.ABORTED,
                f"topology {name!r} has version {record.version} by now, not {expected}",
                "another update came first: look at the present version, and try again",
                reason="VERSION_CHANGED",
            )

    def _is_repetition(self, request: SubmitTopology, known: catalog.TopologyRecord) -> bool:
        """Whether this submission was made before; ALREADY_EXISTS if another submission holds the name."""
        name = request.spec.name
        equal = same_spec(known.spec, request.spec)
        same = bool(request.request_id) and request.request_id == known.request_id and equal
        if known.state in LIVE_STATES and same:
            return True
        if same:
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"this submission of topology {name!r} was cancelled since",
                "submit it again with a new request id",
                reason="SUBMISSION_CANCELLED",
            )
        if known.state not in LIVE_STATES:
            return False
        state = state_name(known.state)
        what = "with the same spec and code" if equal else "with another spec or other code"
        remedy = f"use another name, or give up its state by `millwheel topology cancel {name}` first"
        if known.state in ACTIVE_STATES:
            remedy = (
                f"make it a new version by `millwheel topology update`, use another name, or first end it by "
                f"`millwheel topology drain {name}` and then `cancel`"
            )
        raise RequestError(
            FailureCode.ALREADY_EXISTS, f"topology {name!r} is {state} already, {what}", remedy, reason="NAME_TAKEN"
        )

    def _first_intervals(self) -> list[KeyInterval]:
        return initial_intervals(self._settings.intervals_per_computation, self._settings.split_points)

    def drain(self, request: DrainTopology) -> ChangePlan:
        """Stop injection now. The topology continues until everything pending is processed."""
        record = self._record(request.name)
        if record.state in (catalog.TOPOLOGY_STATE_DRAINING, catalog.TOPOLOGY_STATE_DRAINED):
            return ChangePlan(answer=lambda: self._known.topologies[request.name])
        if record.state != catalog.TOPOLOGY_STATE_RUNNING:
            state = state_name(record.state)
            remedy = f"resume it first: `millwheel topology resume {request.name}`"
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"topology {request.name!r} is {state}, and only a running one can be drained",
                "nothing is left to drain" if state == "cancelled" else remedy,
                reason="NOT_RUNNING",
            )
        return self._change_state(record, catalog.TOPOLOGY_STATE_DRAINING)

    def drained(self, name: str) -> ChangePlan:
        """Everything pending is processed: the intervals lose their owners and keep their state."""
        return self._change_state(self._record(name), catalog.TOPOLOGY_STATE_DRAINED)

    def pause(self, request: PauseTopology) -> ChangePlan:
        """Remove the owners of the intervals, and nothing else. Senders keep the records without an ACK."""
        return self._halt(request.name, catalog.TOPOLOGY_STATE_RUNNING, catalog.TOPOLOGY_STATE_PAUSED, "paused")

    def resume(self, request: ResumeTopology) -> ChangePlan:
        """Assign owners to the intervals of a paused topology, as after the loss of a worker."""
        return self._halt(request.name, catalog.TOPOLOGY_STATE_PAUSED, catalog.TOPOLOGY_STATE_RUNNING, "resumed")

    def set_quota(self, request: SetTopologyQuota) -> ChangePlan:
        """Replace the quota. Intervals beyond it stay: it only refuses further ones."""
        record = self._record(request.name)
        check_quota(request.quota)
        record.quota.CopyFrom(request.quota)
        self._builder.put(keys.topology_key(request.name), record)
        return self._builder.plan(lambda: self._known.topologies[request.name])

    def _halt(
        self,
        name: str,
        before: catalog.TopologyState.ValueType,
        after: catalog.TopologyState.ValueType,
        done: str,
    ) -> ChangePlan:
        record = self._record(name)
        if record.state == after:
            return ChangePlan(answer=lambda: self._known.topologies[name])
        if record.state != before:
            needed = catalog.TopologyState.Name(before).removeprefix("TOPOLOGY_STATE_").lower()
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"topology {name!r} is {state_name(record.state)}, and only a {needed} one can be {done}",
                f"`millwheel topology describe {name}` shows what it is doing",
                reason="NOT_RUNNING" if before == catalog.TOPOLOGY_STATE_RUNNING else "NOT_PAUSED",
            )
        return self._change_state(record, after)

    def cancel(self, request: CancelTopology) -> ChangePlan:
        """Remove the owners of the intervals at once. Garbage collection drops journals and state later."""
        record = self._record(request.name)
        cancelled = record.state == catalog.TOPOLOGY_STATE_CANCELLED
        if request.request_id and request.request_id in record.cancelled_by and not cancelled:
            # The repeated request ended an earlier topology of this name. The present one is another.
            before = catalog.TopologyRecord(version=record.version - 1, state=catalog.TOPOLOGY_STATE_CANCELLED)
            before.spec.name = request.name
            return ChangePlan(answer=lambda: before)
        if cancelled:
            return ChangePlan(answer=lambda: self._known.topologies[request.name])
        if request.request_id:
            kept = [*record.cancelled_by, request.request_id][-_MAX_CANCELLATIONS:]
            del record.cancelled_by[:]
            record.cancelled_by.extend(kept)
        return self._change_state(record, catalog.TOPOLOGY_STATE_CANCELLED)

    def end_updates(self) -> ChangePlan:
        """Forget completed updates, where every interval has an owner that knows the new version."""
        for name, known in self._known.live_topologies():
            behind = {one for one, number in known.switching.items() if self._behind(known.incarnations[one], number)}
            if behind != set(known.switching):
                record = self._record(name)
                for one in set(known.switching) - behind:
                    del record.switching[one]
                self._builder.put(keys.topology_key(name), record)
        return self._builder.plan()

    def drop_delivered(self, delivered: Collection[str]) -> ChangePlan:
        """Drop removed computations, by incarnation, that have delivered everything. Their maps become garbage."""
        for name, known in self._known.live_topologies():
            gone = [
                one
                for one in known.removed
                if one.incarnation in delivered and not self._behind(one.incarnation, one.switching)
            ]
            if gone:
                record = self._record(name)
                for one in gone:
                    record.removed.remove(one)
                self._builder.put(keys.topology_key(name), record)
        return self._builder.plan()

    def _behind(self, incarnation: IncarnationId, number: int) -> int:
        """Count the intervals of an incarnation whose owners are from before an update."""
        interval_map = self._known.maps.get(incarnation)
        return sum(interval.sequencer < number for interval in interval_map) if interval_map is not None else 0

    def waiting_for(self, name: str) -> list[str]:
        """Describe what the updates of a topology still wait for, as text for operators."""
        known = self._known.topologies.get(name)
        if known is None or known.state not in LIVE_STATES:
            return []
        reasons = []
        for one, number in sorted(known.switching.items()):
            behind = self._behind(known.incarnations[one], number)
            if behind:
                reasons.append(f"computation {one}: {behind} interval(s) that still run the version before")
        for removed in known.removed:
            reasons.append(f"removed computation {removed.spec.name}: what it produced is still being delivered")
        return reasons

    def _record(self, name: str) -> catalog.TopologyRecord:
        known = self._known.topologies.get(name)
        if known is None:
            refuse_unknown_topology(name, self._known)
        record = catalog.TopologyRecord()
        record.CopyFrom(known)
        return record

    def _change_state(self, record: catalog.TopologyRecord, state: catalog.TopologyState.ValueType) -> ChangePlan:
        name = record.spec.name
        record.state = state
        record.state_changed_at_us = self._now
        self._builder.put(keys.topology_key(name), record)
        if state not in ACTIVE_STATES:
            for incarnation in (*incarnations_of(record), *(one.incarnation for one in record.removed)):
                release(self._known, incarnation, self._builder)
        return self._builder.plan(lambda: self._known.topologies[name])
