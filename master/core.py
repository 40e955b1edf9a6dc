"""The master's decisions: topologies, interval ownership, injectors (section 7.1). Pure.

Events go in and effects come out (:mod:`millwheel.model.core_protocol`). The core performs one operation at a time,
each based on the newest catalog that the coordinator has delivered:

    plan -> [reserve numbers, read again, plan again] -> [drop] -> [create journals]
         -> transact -> wait until the catalog shows it -> answer

A transaction compares the leadership and every value that the plan rests on. If the transaction fails, or its outcome
is unknown, the core reads everything again and makes a new plan. A change that took effect is then found to be done.
Invariant: a deposed master changes nothing, however late its transactions arrive (6.2). The steps before a transaction
compare nothing. ``docs/failures.md`` says for each why it is safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from millwheel.coordination.contract import Compare, DamagedValueError
from millwheel.master import injection_plans, reshape_plans
from millwheel.master.change_plan import ChangePlan
from millwheel.master.event_log import plan_event, recorded
from millwheel.master.event_texts import event_of_change
from millwheel.master.housekeeping import Housekeeping
from millwheel.master.messages import (
    AbandonRestore,
    BeginRestore,
    CancelTopology,
    CommitBatch,
    CreateJournals,
    DeleteLog,
    DrainTopology,
    Drop,
    EnsureLog,
    Fail,
    FinishInjector,
    JournalsCreated,
    LoadsMeasured,
    MasterEffect,
    MasterEvent,
    MergeIntervals,
    MoveInterval,
    NumbersReserved,
    Observe,
    OpenInjector,
    PauseTopology,
    ProgressObserved,
    RecordEvent,
    ReleaseParents,
    Reload,
    Reply,
    Request,
    RequestReceived,
    ReserveNumbers,
    RestoreTopology,
    ResumeTopology,
    RetireInjector,
    RetireQuery,
    RevisionArrived,
    SetTopologyQuota,
    SnapshotLoaded,
    SplitInterval,
    StateDropped,
    StepDown,
    StoreFailed,
    SubmitTopology,
    Tick,
    Transact,
    TransactionEnded,
    UpdateTopology,
)
from millwheel.master.restores import RestoresInProgress
from millwheel.master.settings import MasterSettings
from millwheel.master.topology_plans import PlanInputs, TopologyPlanner
from millwheel.model.catalog import Catalog
from millwheel.model.core_protocol import RisingValues, require
from millwheel.model.time import Timestamp, milliseconds, seconds
from millwheel.rpc.failures import NOT_LEADING, FailureCode, RequestError

__all__ = ["MasterCore"]

_MAX_ATTEMPTS: Final = 8
_RELOAD_AFTER: Final = seconds(2)
"""How long an operation waits for the catalog before everything is read again."""
_TICK_EVERY: Final = milliseconds(200)
"""How often the core looks for what is overdue."""


class _Phase(Enum):
    RESERVING = auto()
    DROPPING = auto()
    CREATING = auto()
    TRANSACTING = auto()
    FOLLOWING = auto()
    RELOADING = auto()


@dataclass(slots=True)
class _Operation:
    """One plan in progress. ``number`` matches the driver's events to it."""

    number: int
    make: Callable[[], ChangePlan]
    plan: ChangePlan
    received: RequestReceived | None
    """The request. None: housekeeping."""
    phase: _Phase
    since: Timestamp
    attempts: int = 1
    revision: int = 0


class MasterCore:
    """The core of the leading master. It starts with the first ``SnapshotLoaded`` and ends with a ``StepDown``.

    Driven as :class:`millwheel.model.core_protocol.Core` says, by wall time.

    It has many attributes: the operation in progress, what waits for its end, and the times of periodic work.
    """

    def __init__(self, leadership: Compare, settings: MasterSettings | None = None) -> None:
        """``leadership`` holds while this master leads. Every transaction compares it."""
        self.catalog = Catalog()
        self.deposed = False
        self._leadership = leadership
        self._settings = settings or MasterSettings()
        self._restores = RestoresInProgress()
        self._queue: deque[RequestReceived] = deque()
        self._operation: _Operation | None = None
        self._numbers = 0
        self._unusable = 0
        """No number up to this one is drawn: it was drawn already, or is not reserved for this term."""
        self._reserved = 0
        """The last number that is reserved for this term."""
        self.loads: Mapping[str, float] = {}
        """The cost of intervals by journal, in cores, from the last ``LoadsMeasured``."""
        self._now = Timestamp(0)
        self._loaded = False
        self._ticked_at = Timestamp(0)
        self._rising = RisingValues()
        self.housekeeping = Housekeeping(self._inputs, self._restores)

    # The protocol.

    def step(self, event: MasterEvent, now: int) -> Sequence[MasterEffect]:
        """Process ``event`` at wall time ``now``, in microseconds."""
        if self.deposed:
            return [Fail(event.ticket, _not_leading())] if isinstance(event, RequestReceived) else []
        self._set_now(Timestamp(now))
        match event:
            case SnapshotLoaded():
                return self._on_snapshot(event)
            case RevisionArrived():
                return self._on_revision(event)
            case RequestReceived():
                self._queue.append(event)
                return self._begin_next([])
            case NumbersReserved():
                return self._on_reserved(event)
            case StateDropped() | JournalsCreated():
                return self._on_prepared(event)
            case StoreFailed():
                return self._on_store_failure(event)
            case TransactionEnded():
                return self._on_outcome(event)
            case ProgressObserved():
                return self._on_progress(event)
            case LoadsMeasured():
                self.loads = event.loads
                return []
            case Tick():
                return self._on_tick()
            case _:
                assert_never(event)

    def next_deadline(self) -> int | None:
        """The wall time of the next ``Tick``. None: the catalog is not read yet, or this master is deposed."""
        return self._ticked_at + _TICK_EVERY if self._loaded and not self.deposed else None

    def check_invariants(self) -> None:
        """Check the core's invariants. Raises InvariantError."""
        operation = self._operation
        self._rising.check(drawn=self._unusable, numbers=self._numbers, revision=self.catalog.revision)
        if self.deposed:
            require(operation is None and not self._queue, "a deposed master has nothing in progress (6.2)")
        if operation is None:
            require(not self._loaded or not self._queue, "a request waits only for an operation in progress")
            return
        plan = operation.plan
        require(operation.number <= self._numbers, "an operation has a number that was drawn")
        if operation.phase not in (_Phase.RESERVING, _Phase.RELOADING):
            require(plan.drawn <= self._unusable, "a number that a plan draws is never drawn again")
            require(plan.drawn <= self._reserved, "a number is drawn only if it is reserved in the store (6.2)")
        require(operation.phase is not _Phase.CREATING or bool(plan.journals), "journals are created for a plan")
        if operation.phase in (_Phase.TRANSACTING, _Phase.FOLLOWING):
            require(bool(plan.puts or plan.deletes), "a transaction changes something")

    # Events.

    def _on_snapshot(self, event: SnapshotLoaded) -> list[MasterEffect]:
        snapshot = event.snapshot
        # The watch may have overtaken the read. The catalog is the newer of the two in that case.
        if not self._loaded or snapshot.revision >= self.catalog.revision:
            self.catalog.load(snapshot)
            self._loaded = True
        if self._is_lost():
            return self._step_down()
        current = self._current(event.operation, _Phase.RELOADING)
        if current is not None:
            return self._begin_next(self._plan_again(current))
        return self._begin_next(self._followed())

    def _on_revision(self, event: RevisionArrived) -> list[MasterEffect]:
        if not self._loaded or not self.catalog.apply(event.changes):
            return []
        if self._is_lost():
            return self._step_down()
        return self._begin_next(self._followed())

    def _on_reserved(self, event: NumbersReserved) -> list[MasterEffect]:
        """Read the catalog again, and plan again if this master still leads then.

        Each number of a block is below all numbers of later masters only if this master still led when it reserved the
        block. A deposed master may reserve its block after its successor has, and so above the successor's. A plan
        based on that block would have the authority forget the injectors that the successor has opened: the authority,
        unlike the coordinator, knows no leadership. The catalog that is read after the reservation shows who leads.
        """
        current = self._current(event.operation, _Phase.RESERVING)
        if current is None:
            return []
        self._unusable, self._reserved = max(self._unusable, event.first - 1), event.last
        return self._read_again(current)

    def _on_prepared(self, event: StateDropped | JournalsCreated) -> list[MasterEffect]:
        """Take the next step of an operation, after one that the store has done."""
        if isinstance(event, StateDropped):
            phase, go_on = _Phase.DROPPING, self._create
        else:
            phase, go_on = _Phase.CREATING, self._transact
        current = self._current(event.operation, phase)
        return [] if current is None else self._begin_next(go_on(current))

    def _on_store_failure(self, event: StoreFailed) -> list[MasterEffect]:
        current = self._operation
        awaited = (_Phase.RESERVING, _Phase.DROPPING, _Phase.CREATING)
        if current is None or current.number != event.operation or current.phase not in awaited:
            return []
        if event.retry:
            return self._begin_next(self._plan_again(current))
        what = "the state store failed"
        if current.phase is _Phase.DROPPING:
            what = "removed state cannot be deleted yet"
            self.housekeeping.drops_failed(self._now)
        error = RequestError(FailureCode.UNAVAILABLE, f"{what}: {event.why}", "see that it runs, and try again")
        return self._begin_next(self._give_up(current, error), resting=True)

    def _on_outcome(self, event: TransactionEnded) -> list[MasterEffect]:
        current, outcome = self._current(event.operation, _Phase.TRANSACTING), event.outcome
        if current is None:
            return []
        if outcome is not None and outcome.committed:
            current.phase, current.revision = _Phase.FOLLOWING, outcome.revision
            return self._begin_next(self._followed())
        return self._read_again(current)

    def _read_again(self, operation: _Operation) -> list[MasterEffect]:
        operation.phase, operation.since = _Phase.RELOADING, self._now
        return [Reload(operation.number)]

    def _on_progress(self, event: ProgressObserved) -> list[MasterEffect]:
        self.housekeeping.observe(event.progress)
        return self._begin_next([])

    def _on_tick(self) -> list[MasterEffect]:
        if not self._loaded:
            return []
        self._ticked_at = self._now
        done: list[MasterEffect] = [Observe(name) for name in self.housekeeping.due_observations()]
        operation = self._operation
        waits = operation is not None and operation.phase in (_Phase.FOLLOWING, _Phase.RELOADING)
        if operation is not None and waits and self._now >= operation.since + _RELOAD_AFTER:
            operation.since = self._now
            done.append(Reload(operation.number))
        return self._begin_next(done)

    def _set_now(self, now: Timestamp) -> None:
        """Record the wall time. If it was set back, the times in the future are set back with it."""
        if now < self._now:
            self.housekeeping.set_back(now)
            self._ticked_at = min(self._ticked_at, now)
            if self._operation is not None:
                self._operation.since = min(self._operation.since, now)
        self._now = now

    # Reading.

    def waiting_for(self, topology: str) -> list[str]:
        """Describe what a draining or updated topology still waits for, as text for operators."""
        return [*self.housekeeping.draining_for(topology), *self._planner().waiting_for(topology)]

    # The steps of an operation.

    def _begin_next(self, done: list[MasterEffect], resting: bool = False) -> list[MasterEffect]:
        """Start operations until one of them has to wait.

        ``resting``: housekeeping has just failed at the store. It is not tried again before the next event.
        """
        while self._loaded and self._operation is None:
            due = None if resting else self.housekeeping.next_plan()
            if due is not None:
                done += self._begin(*due, None)
            elif self._queue:
                done += self._attempt(self._queue.popleft())
            else:
                break
        return done

    def _attempt(self, received: RequestReceived) -> list[MasterEffect]:
        try:
            return self._begin(lambda: self._plan(received.request), self._plan(received.request), received)
        except RequestError as error:
            return [Fail(received.ticket, error)]
        except DamagedValueError as error:
            return [Fail(received.ticket, _refusal(error))]

    def _begin(
        self, make: Callable[[], ChangePlan], plan: ChangePlan, received: RequestReceived | None
    ) -> list[MasterEffect]:
        self._numbers += 1
        self._operation = _Operation(self._numbers, make, plan, received, _Phase.DROPPING, self._now)
        return self._carry_out(self._operation)

    def _carry_out(self, operation: _Operation) -> list[MasterEffect]:
        plan = operation.plan
        if plan.drawn > self._reserved:
            operation.phase = _Phase.RESERVING
            return [ReserveNumbers(operation.number, max(self.catalog.drawn, self._unusable))]
        self._unusable = max(self._unusable, plan.drawn)
        if plan.clears:
            operation.phase = _Phase.DROPPING
            return [Drop(operation.number, plan.drop_journals, plan.drop_incarnations, plan.drop_injectors)]
        return self._create(operation)

    def _create(self, operation: _Operation) -> list[MasterEffect]:
        if operation.plan.journals:
            operation.phase = _Phase.CREATING
            return [CreateJournals(operation.number, operation.plan.journals)]
        return self._transact(operation)

    def _transact(self, operation: _Operation) -> list[MasterEffect]:
        plan = operation.plan
        if not plan.puts and not plan.deletes:
            return self._finish(operation)
        operation.phase = _Phase.TRANSACTING
        received = operation.received
        request, actor = (None, "") if received is None else (received.request, received.actor)
        event = event_of_change(self.catalog, request, actor, plan)
        puts, deletes = (plan.puts, plan.deletes)
        if event is not None:
            more, old = recorded(self.catalog.events, event, self._now)
            puts, deletes = (*puts, more), (*deletes, *old)
        return [Transact(operation.number, (self._leadership, *plan.compares), puts, deletes)]

    def _followed(self) -> list[MasterEffect]:
        """Finish the operation if the catalog now shows its effect."""
        operation = self._operation
        if operation is None or operation.phase is not _Phase.FOLLOWING:
            return []
        if self.catalog.revision < operation.revision:
            operation.since = self._now
            return []
        return self._finish(operation)

    def _finish(self, operation: _Operation) -> list[MasterEffect]:
        self._operation = None
        if operation.received is None or operation.plan.answer is None:
            return []
        return [Reply(operation.received.ticket, operation.plan.answer())]

    def _plan_again(self, operation: _Operation) -> list[MasterEffect]:
        if operation.attempts >= _MAX_ATTEMPTS:
            busy = RequestError(
                FailureCode.ABORTED, "the catalog kept changing while this request was carried out", "try again"
            )
            return self._give_up(operation, busy)
        try:
            operation.plan = operation.make()
        except RequestError as error:
            return self._give_up(operation, error)
        except DamagedValueError as error:
            return self._give_up(operation, _refusal(error))
        # A new number: a late event that carries the old number belongs to the old plan.
        self._numbers += 1
        operation.number, operation.attempts = self._numbers, operation.attempts + 1
        return self._carry_out(operation)

    def _give_up(self, operation: _Operation, error: RequestError) -> list[MasterEffect]:
        self._operation = None
        return [] if operation.received is None else [Fail(operation.received.ticket, error)]

    def _is_lost(self) -> bool:
        """Whether the catalog shows another leader, or none."""
        return self.catalog.modified(self._leadership.key) != self._leadership.modified

    def _step_down(self) -> list[MasterEffect]:
        self.deposed = True
        waiting = [*self._queue]
        if self._operation is not None and self._operation.received is not None:
            waiting.insert(0, self._operation.received)
        self._operation = None
        self._queue.clear()
        done: list[MasterEffect] = [Fail(received.ticket, _not_leading()) for received in waiting]
        return [*done, StepDown("the leadership has gone to another master, or its lease has ended")]

    def _current(self, number: int, phase: _Phase) -> _Operation | None:
        operation = self._operation
        fits = operation is not None and operation.number == number and operation.phase is phase
        return operation if fits else None

    # Planning.

    def _inputs(self) -> PlanInputs:
        return PlanInputs(self.catalog, self._settings, self._now, self._unusable, self.loads)

    def _planner(self) -> TopologyPlanner:
        return TopologyPlanner(self._inputs())

    def _plan(self, request: Request) -> ChangePlan:
        match request:
            case SubmitTopology():
                return self._planner().submit(request)
            case DrainTopology():
                self.housekeeping.begin_drain(request.name)
                return self._planner().drain(request)
            case CancelTopology():
                return self._planner().cancel(request)
            case UpdateTopology() | PauseTopology() | ResumeTopology() | SetTopologyQuota():
                return self._planner().change(request)
            case BeginRestore() | AbandonRestore():
                return self._restores.plan(self.catalog, request)
            case RestoreTopology():
                self._restores.check(self.catalog, request)
                self._unusable = max(self._unusable, request.drawn)
                return self._planner().restore(request)
            case EnsureLog() | DeleteLog():
                planner = self._planner()
                return planner.logs.ensure(request) if isinstance(request, EnsureLog) else planner.logs.delete(request)
            case OpenInjector() | FinishInjector() | RetireInjector() | CommitBatch() | RetireQuery():
                return injection_plans.plan_injection(self.catalog, request, self._unusable, self._now)
            case MoveInterval() | SplitInterval() | MergeIntervals():
                return reshape_plans.plan_reshape(self.catalog, request, self._unusable, self.loads)
            case ReleaseParents():
                return reshape_plans.plan_release(self.catalog, request)
            case RecordEvent():
                return plan_event(self.catalog.events, request, self._now)


def _refusal(error: DamagedValueError) -> RequestError:
    """The error for a request that depends on a damaged value."""
    return RequestError(FailureCode.DATA_LOSS, str(error), reason="VALUE_DAMAGED")


def _not_leading() -> RequestError:
    return RequestError(
        FailureCode.UNAVAILABLE,
        "this master no longer leads",
        "the request may or may not have taken effect: repeat it with the same request id",
        reason=NOT_LEADING,
    )
