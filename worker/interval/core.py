"""The core of one owned key interval: a pure state machine (sections 4, 5.1, 6.1, 6.2).

The core takes an event and the wall-clock time, and returns effects (:mod:`millwheel.model.core_protocol`). An owner
goes through four steps:

1. It fences the journal and reads it (G3).
2. It replays the journal.
3. It has the authority accept its sequencer (G4).
4. It serves.

While the interval serves, a record passes these steps: delivery → duplicate check → hooks on cached state → one
conditional append → ACK to the sender → productions sent until their consumers ACK them.

One commit is in flight at a time. Meanwhile the next batch runs on the in-memory state.

Invariant: no effect of a batch is visible outside the core before the preceding commit is in the journal. An older
owner that wakes up after a pause could break it. The fence refuses its appends and the authority refuses its reports.
At the first refusal the older owner drops the interval: it ACKs, sends and reports nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.context import OutputBinding
from millwheel.worker.interval.blocked_keys import BlockedKeys
from millwheel.worker.interval.checkpoint import Checkpointer, Needs
from millwheel.worker.interval.commits import Commits
from millwheel.worker.interval.divided import is_entry_part
from millwheel.worker.interval.failing_keys import FailingKeys
from millwheel.worker.interval.failures import Failures
from millwheel.worker.interval.firing import Firing
from millwheel.worker.interval.hook_times import AwaitedHook, HookMeter
from millwheel.worker.interval.invariants import IntervalInvariants
from millwheel.worker.interval.receiving import Receiving
from millwheel.worker.interval.recovery import recover
from millwheel.worker.interval.runner import Runner
from millwheel.worker.interval.sealing import Sealer
from millwheel.worker.interval.spilled_timers import is_spilled
from millwheel.worker.interval.state import IntervalConfig, IntervalState
from millwheel.worker.interval.subjects import BLOCKED, hold_subject, hold_witness
from millwheel.worker.interval.timers import effective_hold
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledged,
    Appended,
    CatalogChanged,
    Delivery,
    Deposed,
    FenceJournal,
    GiveUp,
    Halted,
    HookFinished,
    HooksSlow,
    IntervalEffect,
    IntervalEvent,
    Opened,
    OpenFailed,
    PartsMissing,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    ReadStates,
    Refused,
    Report,
    Resend,
    SenderWatermarks,
    SequenceChecked,
    Started,
    StatesFlushed,
    StatesRead,
    Tick,
)

__all__ = ["IntervalCore", "IntervalPhase"]

_REPEAT_REPORT_US: Final = 5_000_000
"""Minimum time in microseconds before an unchanged watermark is reported again because its key has failed again."""


class IntervalPhase(Enum):
    """The stage that an owner has reached."""

    OPENING = "taking the journal"
    ACCEPTING = "waiting for the authority"
    SERVING = "serving"
    LOST = "not the owner any more"


class IntervalCore:
    """One interval, for one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says."""

    def __init__(
        self,
        config: IntervalConfig,
        program: CompiledComputation,
        outputs: dict[str, OutputBinding],
        locate: Callable[[str, bytes], str],
        meter: HookMeter | None = None,
    ) -> None:
        """``meter`` measures the run times of hooks. None: they are not measured."""
        self.state = state = IntervalState(config, program, outputs, locate, meter)
        self.phase = IntervalPhase.OPENING
        self.lost_because = ""
        runner = Runner(state)
        firing = Firing(runner)
        self._runner = runner
        self._firing = firing
        self._blocked_keys = BlockedKeys(runner, firing, Failures(state))
        self._receiving = Receiving(state)
        checkpoints = Checkpointer(state)
        sealer = Sealer(state, lambda key, error: self._blocked_keys.failed(key, None, error))
        self._commits = Commits(state, runner, sealer, checkpoints, self._receiving)
        self._checkpoints = checkpoints
        self._reported: tuple[int, int, int, bytes | None] | None = None
        self._reported_failures = 0
        self._reported_at = 0
        self._invariants = IntervalInvariants(state)
        self._handlers: dict[type, Callable[..., Sequence[IntervalEffect]]] = {
            Started: self._on_started,
            Delivery: self._on_delivery,
            Appended: self._on_appended,
            Acknowledged: self._on_acknowledged,
            SenderWatermarks: self._on_watermarks,
            CatalogChanged: self._on_catalog_changed,
            Tick: self._on_tick,
            Refused: self._on_refused,
            Halted: self._on_halted,
            Resend: self._on_resend,
            StatesRead: self._on_states_read,
            StatesFlushed: self._on_flushed,
            PartsWritten: self._on_parts_written,
            PartsRead: self._on_parts_read,
            PartsMissing: self._on_parts_missing,
            SequenceChecked: self._on_sequence_checked,
            HookFinished: self._on_hook_finished,
            PrepareRelease: self._on_prepare_release,
            Opened: self._on_opened,
            Accepted: self._on_accepted,
            OpenFailed: self._on_lost,
            Deposed: self._on_lost,
        }

    def step(self, event: IntervalEvent, now: int) -> Sequence[IntervalEffect]:
        """Process ``event`` at wall-clock time ``now`` (microseconds)."""
        if self.phase is IntervalPhase.LOST:
            return []
        state = self.state
        state.look_at_clock(now)
        out = [*self._handlers[type(event)](event)]
        if self.phase is IntervalPhase.SERVING:
            self._pump(out)
        return out

    def next_deadline(self) -> int | None:
        """The wall-clock time at which a Tick is due if no other event comes before. None: no Tick is needed."""
        if self.phase is not IntervalPhase.SERVING:
            return None
        state = self.state
        # A timer that is due already needs no deadline. It waits for another event: its key is unblocked, the commit is
        # appended, or its spilled part is read.
        rings = (state.timers[True].next_time(), state.spilled.first(True))
        ring = min((at for at in rings if at is not None and at > state.wall), default=None)
        # A stopped interval retries nothing.
        retry = None if self._blocked_keys.stopped else state.intake.next_retry()
        delays = [state.wall_at(delay) for delay in (retry, self._commits.next_alarm()) if delay is not None]
        return min(delays if ring is None else [ring, *delays], default=None)

    def check_invariants(self) -> None:
        """Check the interval's invariants. It visits all timers and holds, so it is for tests and for finding errors.

        Raises:
            InvariantError: Something that must not fall has fallen, or a count is not balanced.
            RuntimeError: A hold was lost, or ended too early.
        """
        self._invariants.check()
        state = self.state
        effective = (effective_hold(one, wall) for wall, table in state.timers.items() for _, _, one in table.items())
        stated = [*state.holds.of_keys.values(), *effective, *(part.hold for part in state.spilled.parts.values())]
        passing = [self._runner.batch.hold, *self._blocked_keys.holds(), *self._commits.holds()]
        state.holds.check((at for at in stated if at is not None), passing)

    @property
    def independent(self) -> bool:
        """Whether neither this owner nor a successor needs the parents' journals. True if there are no parents."""
        if self.phase is not IntervalPhase.SERVING:
            return not self.state.config.parents
        return self._checkpoints.needs is Needs.NOTHING and not self._receiving.reads_elsewhere

    @property
    def stopped(self) -> str:
        """Why the failure policy has stopped the computation. Empty while it runs."""
        return self._blocked_keys.stopped

    @property
    def damaged_rows(self) -> Mapping[bytes, str]:
        """The keys whose state rows are damaged, each with the reason.

        Their work waits, or fails by the failure policy.
        """
        return self._blocked_keys.damaged

    @property
    def failing(self) -> FailingKeys:
        """The keys that are blocked because a hook raises."""
        return self.state.failing

    def awaited_hooks(self, before: int, count: int) -> list[AwaitedHook]:
        """Up to ``count`` running asynchronous hooks that started by wall-clock time ``before``, oldest first."""
        return self._blocked_keys.awaited(before, count)

    @property
    def meter(self) -> HookMeter:
        """How often hooks ran, and for how long."""
        return self.state.meter

    # Stages of an owner.

    def _on_started(self, event: Started) -> Sequence[IntervalEffect]:
        config = self.state.config
        return [FenceJournal(config.journal, config.sequencer, config.parents)]

    def _on_opened(self, event: Opened) -> Sequence[IntervalEffect]:
        recover(self.state, event)
        in_parts = sum(len(blob) for part, blob in event.parts.items() if is_entry_part(part))
        self._checkpoints.recovered(self.state.elapsed, in_parts + sum(map(len, event.entries)))
        self._receiving.collect_early()
        self.phase = IntervalPhase.ACCEPTING
        config = self.state.config
        return [AcceptSequencer(config.computation, config.keys, config.sequencer)]

    def _on_accepted(self, event: Accepted) -> Sequence[IntervalEffect]:
        self.state.holds.raise_output(event.watermark)
        self.phase = IntervalPhase.SERVING
        return [*self._checkpoints.copy_segments(), *self._commits.begin(), *self._receiving.opened()]

    def _on_lost(self, event: Deposed | OpenFailed) -> Sequence[IntervalEffect]:
        self.phase = IntervalPhase.LOST
        self.lost_because = event.reason
        return []

    # Events while serving.

    def _on_delivery(self, event: Delivery) -> Sequence[IntervalEffect]:
        return self._receiving.deliver(event, self.phase is IntervalPhase.SERVING)

    def _on_appended(self, event: Appended) -> Sequence[IntervalEffect]:
        return self._commits.appended(event.commit)

    def _on_acknowledged(self, event: Acknowledged) -> Sequence[IntervalEffect]:
        return self._commits.acknowledged(event.token, event.remaining)

    def _on_refused(self, event: Refused) -> Sequence[IntervalEffect]:
        return [GiveUp(event.reason)] if self.state.outbox.get(event.token) is not None else []

    def _on_resend(self, event: Resend) -> Sequence[IntervalEffect]:
        return self._commits.resend(event) if self.phase is IntervalPhase.SERVING else []

    def _on_halted(self, event: Halted) -> Sequence[IntervalEffect]:
        self.state.outbox.halt(event.token)
        return []

    def _on_watermarks(self, event: SenderWatermarks) -> Sequence[IntervalEffect]:
        self.state.inputs.update(event.values)
        if self.phase is IntervalPhase.OPENING:
            self._receiving.collect_later(event)
        else:
            self._receiving.collect(event)
        return []

    def _on_catalog_changed(self, event: CatalogChanged) -> Sequence[IntervalEffect]:
        if event.slack is not None:
            self.state.slack = event.slack
        self._receiving.retire(event.retired)
        self._receiving.end(event.ended_injectors, event.ended_queries)
        inputs = self.state.inputs
        known = inputs.senders.keys()
        for sender in event.senders.difference(known):
            inputs.add(sender)
        for sender in known - event.senders:
            inputs.remove(sender)
        return []

    def _on_tick(self, event: Tick) -> Sequence[IntervalEffect]:
        return self._commits.idle()

    def _on_states_read(self, event: StatesRead) -> Sequence[IntervalEffect]:
        if newer := next((row for row in event.rows if row is not None and row.commit > self.state.committed), None):
            # Rows hold committed state only, so a newer row comes from a successor. No hook here may run on a
            # successor's state.
            return [GiveUp(f"another owner has written the row of key {newer.key!r}, as of commit {newer.commit}")]
        for key, row in zip(event.keys, event.rows, strict=True):
            if key in event.damaged:
                self._blocked_keys.row_damaged(key, event.damaged[key])
            else:
                self._blocked_keys.row_read(key, row.blob if row is not None else b"")
        return []

    def _on_flushed(self, event: StatesFlushed) -> Sequence[IntervalEffect]:
        self._checkpoints.flushed(event.number, _Busy(self._runner, self.state))
        return []

    def _on_parts_written(self, event: PartsWritten) -> Sequence[IntervalEffect]:
        self._checkpoints.parts_written(event.number)
        self._receiving.parts_written(event.number)
        return self._commits.parts_written(event.number)

    def _on_parts_missing(self, event: PartsMissing) -> Sequence[IntervalEffect]:
        if is_spilled(event.parts):
            self._checkpoints.spilling.missing(event)
        return self._receiving.segments_missing(event)

    def _on_parts_read(self, event: PartsRead) -> Sequence[IntervalEffect]:
        if is_spilled(event.blobs):
            self._checkpoints.spilling.read(event)
            return []
        return self._receiving.segments_read(event)

    def _on_sequence_checked(self, event: SequenceChecked) -> Sequence[IntervalEffect]:
        return self._receiving.sequence_checked(event)

    def _on_prepare_release(self, event: PrepareRelease) -> Sequence[IntervalEffect]:
        self._checkpoints.ask(event.request)
        return []

    def _on_hook_finished(self, event: HookFinished) -> Sequence[IntervalEffect]:
        self._blocked_keys.hook_finished(event.hook, event.error)
        return []

    # The pump: run, fire, commit and report as far as possible.

    def _pump(self, out: list[IntervalEffect]) -> None:
        """Do everything that is possible after an event. The order of the passes is fixed:

        1. Evict cells, once.
        2. Repeat: advance the input watermark, load spilled timers, run hooks (``_run``), end queued weak commits,
           commit.
        3. Ask for spilled timers and rows, pass on what hooks left to do, and report the output watermark, once.

        Why the repetition ends: another round follows only for these reasons, and each uses up what no round adds.

        - A weak commit without lasting effects ended. It had consumed records, and records come by events only.
        - Rows of spilled timers were loaded. They come by events only.
        - A commit began. A strong one, or one with timers, needs that nothing is in flight, so each event has one at
          most. A weak one consumes records.
        - The open commit has room again, because an append began. Or a request to release the interval was answered.
        - Several pieces of work of one key were undone (``again``). Each runs alone from then on. If it fails alone,
          the failure policy decides, and a retry waits for its time.
        """
        state, runner, commits = self.state, self._runner, self._commits
        if state.cells.bytes_held > state.cells.limit_bytes:
            state.cells.evict(_Busy(runner, state), state.next_timer)
        while True:
            self._advance_watermark()
            if state.spilled:
                out.extend(self._checkpoints.spilling.pump())
            held, crowded = self._checkpoints.releasing, commits.crowded
            self._blocked_keys.again = False
            if not self._blocked_keys.stopped:
                self._run()
            if commits.settle_weak(out) or (state.spilled and self._checkpoints.spilling.may_take_in):
                # The queue is empty and no append is in flight, so the watermark can advance and timers read from the
                # store can be loaded now.
                continue
            more = commits.try_commit(out) or self._checkpoints.releasing != held
            more = more or (crowded and not commits.crowded)
            if not more and (commits.crowded or not self._blocked_keys.again):
                # The current batch has no room in the open commit, or nothing is left to run. The ACK or append that
                # makes room is an event of its own.
                break
        if state.spilled:
            # The watermark may have reached spilled timers, or memory may have few timers left. Request the spilled
            # part now, because no other event may come.
            out.extend(self._checkpoints.spilling.ask())
        if runner.to_read:
            out.append(ReadStates(state.config.computation, runner.to_read))
            runner.to_read = []
        if self._blocked_keys.to_await:
            out.extend(self._blocked_keys.to_await)
            self._blocked_keys.to_await = []
        if self._blocked_keys.reports:
            out.extend(self._blocked_keys.reports)
            self._blocked_keys.reports = []
        if state.meter.slow is not None:
            out.append(HooksSlow(state.meter.slow))
            state.meter.slow = None
        self._report(out)

    def _run(self) -> None:
        state, runner = self.state, self._runner
        if not self._commits.crowded:
            self._blocked_keys.resume_ready()
        crowded = state.outbox_full
        self._fire_due(crowded)
        if state.intake.line and not runner.full() and not state.behind:
            ahead_allowed = not (crowded or state.cells.overfull or self._checkpoints.releasing)
            runner.run_line(ahead_allowed, self._firing.run_due_of if crowded else None)

    def _fire_due(self, crowded: bool) -> None:
        """Fire the timers that are due. If ``crowded``, fire only those that may hold the watermark (G13).

        While the outbox is full, due timers wait if a production without an ACK holds the watermark at least as low as
        every stated hold. The consumers admit that production even when they are full, so the timers run later (G8).

        A record that holds the watermark runs after the due timers of its key (``run_due_of``). While due timers are
        still in the store, it is unknown which keys have one. Then no timer waits.
        """
        state, firing = self.state, self._firing
        upto, waits = state.due_until(False), False
        if crowded and not (state.behind and state.has_holder):
            pending = state.outbox.unacked.held.min()
            waits = pending <= state.holds.min_stated()
            if waits:
                upto = min(upto, pending - 1)
        firing.run_due(False, upto)
        if waits:
            return
        if state.ahead:
            firing.run_ahead()
        firing.run_due(True, state.due_until(True))

    def _advance_watermark(self) -> None:
        """Input watermark = min(senders' broadcast values, records received here and not committed).

        It is monotone (G7).
        """
        state = self.state
        bound = state.inputs.value
        pending = state.intake.pending.min()
        bound = min(bound, pending)
        if bound > state.watermark:
            state.watermark = state.scope.watermark = bound
            if state.floors and bound >= state.floors.lowest:
                state.set_floors(state.floors.above(bound))

    # Reports.

    def _held(self) -> tuple[int, HoldKind.ValueType]:
        """The output watermark that the unfinished work allows, and the kind of work that is lowest."""
        state = self.state
        return state.holds.lowest(state.watermark, state.timers[False].next_time(), state.spilled.first(False))

    def explain_hold(self) -> tuple[HoldKind.ValueType, str]:
        """What holds the output watermark now: the kind, and the record, timer, production or key."""
        held, hold = self._held()
        return hold, hold_subject(self.state, hold, max(held, self.state.holds.output))

    def _report(self, out: list[IntervalEffect]) -> None:
        """Report the output watermark, which is monotone, if its value or its hold explanation has changed."""
        state = self.state
        output, hold = self._held()
        output = state.holds.raise_output(output)
        witness, failures = hold_witness(state, hold)
        reported = (output, state.watermark, hold, witness)
        at_once = self._reported_failures == 0 or failures == BLOCKED
        rested = at_once or state.elapsed - self._reported_at >= _REPEAT_REPORT_US
        again = failures != self._reported_failures and rested
        if reported != self._reported or again:
            self._reported, self._reported_failures, self._reported_at = reported, failures, state.elapsed
            config = state.config
            subject = hold_subject(state, hold, output)
            out.append(
                Report(config.computation, config.keys, config.sequencer, output, state.watermark, hold, subject)
            )

    @property
    def keys(self) -> KeyInterval:
        """The interval's keys."""
        return self.state.config.keys


class _Busy:
    """The keys whose cells are in use and must stay in the cache."""

    def __init__(self, runner: Runner, state: IntervalState) -> None:
        self._contexts = runner.batch.contexts
        self._blocked = state.intake.blocked

    def __contains__(self, key: object) -> bool:
        return key in self._contexts or key in self._blocked
