"""The core of one owned key interval: a pure state machine (sections 4, 5.1, 6.1, 6.2; design §4).

It takes an event and the wall time, and returns instructions. Its life: fence the journal and read it
(G3), replay, have the authority accept the sequencer (G4), then serve. Serving, a record goes
delivery → duplicate check → hooks on cached state → one conditional append → ACK the sender →
deliver productions until they are ACKed. One commit is in flight at a time; meanwhile the next batch runs
on the in-memory state, and nothing of it is shown to anybody before the commit before it is in the journal.

Who may break it: an older owner of the interval that wakes up. Its appends are refused by the
fence, its reports by the authority; at the first refusal it drops the interval: it ACKs nothing, sends
nothing and reports nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

from millwheel.core.keys import KeyInterval
from millwheel.core.time import LAST_TIMESTAMP
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.context import OutputBinding
from millwheel.worker.interval.checkpoint import Checkpointer, Needs
from millwheel.worker.interval.commits import Commits
from millwheel.worker.interval.divided import is_entry_part
from millwheel.worker.interval.failing_keys import FailingKeys
from millwheel.worker.interval.failures import Failures
from millwheel.worker.interval.far import is_far
from millwheel.worker.interval.firing import Firing
from millwheel.worker.interval.hook_times import AwaitedHook, HookMeter
from millwheel.worker.interval.parking import Parking
from millwheel.worker.interval.receiving import Receiving
from millwheel.worker.interval.recovery import recover
from millwheel.worker.interval.runner import Runner
from millwheel.worker.interval.sealing import Sealer
from millwheel.worker.interval.state import IntervalConfig, IntervalState
from millwheel.worker.interval.subjects import BLOCKED, hold_subject, hold_witness
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledged,
    Appended,
    CatalogChanged,
    Delivery,
    Deposed,
    Event,
    FenceJournal,
    GiveUp,
    Halted,
    HookFinished,
    HooksSlow,
    Instruction,
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
    StatesFlushed,
    StatesRead,
    Tick,
)

__all__ = ["IntervalCore", "Phase"]

_SAY_AGAIN: Final = 5_000_000
"""Microseconds after which a report of the same watermark goes out again, if its key has failed again meanwhile."""


class Phase(Enum):
    """Where an owner stands."""

    OPENING = "taking the journal"
    ACCEPTING = "waiting for the authority"
    SERVING = "serving"
    LOST = "not the owner any more"


class IntervalCore:
    """One interval, for one sequencer. ``handle`` is its only way in."""

    def __init__(
        self,
        config: IntervalConfig,
        program: CompiledComputation,
        outputs: dict[str, OutputBinding],
        locate: Callable[[str, bytes], str],
        meter: HookMeter | None = None,
    ) -> None:
        """``meter`` measures the hooks; None: their times are not measured."""
        self.state = state = IntervalState(config, program, outputs, locate, meter)
        self.phase = Phase.OPENING
        self.lost_because = ""
        runner = Runner(state)
        firing = Firing(runner)
        self._runner = runner
        self._firing = firing
        self._parking = Parking(runner, firing, Failures(state))
        self._receiving = Receiving(state)
        checkpoints = Checkpointer(state)
        sealer = Sealer(state, lambda key, error: self._parking.failed(key, None, error))
        self._commits = Commits(state, runner, sealer, checkpoints, self._receiving)
        self._checkpoints = checkpoints
        self._reported: tuple[int, int, int, bytes | None] | None = None
        self._reported_failures = 0
        self._reported_at = 0
        self._handlers: dict[type, Callable[..., list[Instruction]]] = {
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

    def start(self) -> list[Instruction]:
        """The first instructions: take the journal."""
        config = self.state.config
        return [FenceJournal(config.journal, config.sequencer, config.parents)]

    def handle(self, event: Event, now: int) -> list[Instruction]:
        """React to ``event`` at wall time ``now`` (microseconds)."""
        if self.phase is Phase.LOST:
            return []
        state = self.state
        state.look_at_clock(now)
        out = self._handlers[type(event)](event)
        if self.phase is Phase.SERVING:
            self._pump(out)
        return out

    def next_alarm(self) -> int | None:
        """The wall time at which a Tick is due, if nothing else happens before."""
        if self.phase is not Phase.SERVING:
            return None
        state = self.state
        # What is due waits for an event: its key's, the commit's, or that of the part that it is in.
        rings = (state.timers[True].next_time(), state.far.first(True))
        ring = min((at for at in rings if at is not None and at > state.wall), default=None)
        # Of an interval that stands still nothing is tried again.
        retry = None if self._parking.stopped else state.intake.next_retry()
        delays = [state.wall_at(delay) for delay in (retry, self._commits.next_alarm()) if delay is not None]
        return min(delays if ring is None else [ring, *delays], default=None)

    @property
    def independent(self) -> bool:
        """Whether nothing is needed of parents' journals, now or by a successor; True where there are none."""
        if self.phase is not Phase.SERVING:
            return not self.state.config.parents
        return self._checkpoints.needs is Needs.NOTHING and not self._receiving.reads_elsewhere

    @property
    def stopped(self) -> str:
        """Why the computation stands still by its failure policy; empty while it runs."""
        return self._parking.stopped

    @property
    def damaged_rows(self) -> Mapping[bytes, str]:
        """The keys whose state rows were found damaged, and why: their work waits, or fails by its policy."""
        return self._parking.damaged

    @property
    def failing(self) -> FailingKeys:
        """The keys that a raising hook blocks."""
        return self.state.failing

    def awaited_hooks(self, before: int, count: int) -> list[AwaitedHook]:
        """Up to ``count`` of the asynchronous hooks that began by wall time ``before`` and run still; oldest first."""
        return self._parking.awaited(before, count)

    @property
    def meter(self) -> HookMeter:
        """How often hooks ran, and for how long."""
        return self.state.meter

    # Life.

    def _on_opened(self, event: Opened) -> list[Instruction]:
        recover(self.state, event)
        in_parts = sum(len(blob) for part, blob in event.parts.items() if is_entry_part(part))
        self._checkpoints.recovered(self.state.elapsed, in_parts + sum(map(len, event.entries)))
        self._receiving.collect_early()
        self.phase = Phase.ACCEPTING
        config = self.state.config
        return [AcceptSequencer(config.computation, config.keys, config.sequencer)]

    def _on_accepted(self, event: Accepted) -> list[Instruction]:
        self.state.output = max(self.state.output, event.watermark)
        self.phase = Phase.SERVING
        return [*self._checkpoints.copy_segments(), *self._commits.begin(), *self._receiving.opened()]

    def _on_lost(self, event: Deposed | OpenFailed) -> list[Instruction]:
        self.phase = Phase.LOST
        self.lost_because = event.reason
        return []

    # Events while serving.

    def _on_delivery(self, event: Delivery) -> list[Instruction]:
        return self._receiving.deliver(event, self.phase is Phase.SERVING)

    def _on_appended(self, event: Appended) -> list[Instruction]:
        return self._commits.appended(event.commit)

    def _on_acknowledged(self, event: Acknowledged) -> list[Instruction]:
        return self._commits.acknowledged(event.token, event.remaining)

    def _on_refused(self, event: Refused) -> list[Instruction]:
        return [GiveUp(event.reason)] if self.state.outbox.get(event.token) is not None else []

    def _on_resend(self, event: Resend) -> list[Instruction]:
        return self._commits.resend(event) if self.phase is Phase.SERVING else []

    def _on_halted(self, event: Halted) -> list[Instruction]:
        self.state.outbox.halt(event.token)
        return []

    def _on_watermarks(self, event: SenderWatermarks) -> list[Instruction]:
        self.state.inputs.update(event.values)
        if self.phase is Phase.OPENING:
            self._receiving.collect_later(event)
        else:
            self._receiving.collect(event)
        return []

    def _on_catalog_changed(self, event: CatalogChanged) -> list[Instruction]:
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

    def _on_tick(self, event: Tick) -> list[Instruction]:
        return self._commits.idle()

    def _on_states_read(self, event: StatesRead) -> list[Instruction]:
        if newer := next((row for row in event.rows if row is not None and row.commit > self.state.committed), None):
            # Rows are written from what is committed: no hook here is to see what a successor has made of the key.
            return [GiveUp(f"another owner has written the row of key {newer.key!r}, as of commit {newer.commit}")]
        for key, row in zip(event.keys, event.rows, strict=True):
            if key in event.damaged:
                self._parking.row_damaged(key, event.damaged[key])
            else:
                self._parking.row_read(key, row.blob if row is not None else b"")
        return []

    def _on_flushed(self, event: StatesFlushed) -> list[Instruction]:
        self._checkpoints.flushed(event.number, _Busy(self._runner, self.state))
        return []

    def _on_parts_written(self, event: PartsWritten) -> list[Instruction]:
        self._checkpoints.parts_written(event.number)
        self._receiving.parts_written(event.number)
        return self._commits.parts_written(event.number)

    def _on_parts_missing(self, event: PartsMissing) -> list[Instruction]:
        if is_far(event.parts):
            self._checkpoints.spilling.missing(event)
        return self._receiving.segments_missing(event)

    def _on_parts_read(self, event: PartsRead) -> list[Instruction]:
        if is_far(event.blobs):
            self._checkpoints.spilling.read(event)
            return []
        return self._receiving.segments_read(event)

    def _on_sequence_checked(self, event: SequenceChecked) -> list[Instruction]:
        return self._receiving.sequence_checked(event)

    def _on_prepare_release(self, event: PrepareRelease) -> list[Instruction]:
        self._checkpoints.ask(event.request)
        return []

    def _on_hook_finished(self, event: HookFinished) -> list[Instruction]:
        self._parking.hook_finished(event.hook, event.error)
        return []

    # The pump: whatever can go on, goes on.

    def _pump(self, out: list[Instruction]) -> None:
        state, runner, commits = self.state, self._runner, self._commits
        if state.cells.bytes_held > state.cells.limit_bytes:
            state.cells.evict(_Busy(runner, state), state.next_timer)
        while True:
            self._advance_watermark()
            if state.far:
                out.extend(self._checkpoints.spilling.pump())
            held, crowded = self._checkpoints.releasing, commits.crowded
            self._parking.again = False
            if not self._parking.stopped:
                self._run()
            if commits.settle_weak(out) or (state.far and self._checkpoints.spilling.may_take_in):
                # Nothing is in flight that the watermark, or timers that have been read, would wait for.
                continue
            more = commits.try_commit(out) or self._checkpoints.releasing != held
            more = more or (crowded and not commits.crowded)
            if not more and (commits.crowded or not self._parking.again):
                # While the batch at hand has no room nothing more is run: the ACK or append that makes room comes.
                break
        if state.far:
            # What the watermark has reached meanwhile, or memory has no more, may be in the store: perhaps no other
            # event comes.
            out.extend(self._checkpoints.spilling.ask())
        if runner.to_read:
            out.append(ReadStates(state.config.computation, runner.to_read))
            runner.to_read = []
        if self._parking.to_await:
            out.extend(self._parking.to_await)
            self._parking.to_await = []
        if self._parking.reports:
            out.extend(self._parking.reports)
            self._parking.reports = []
        if state.meter.slow is not None:
            out.append(HooksSlow(state.meter.slow))
            state.meter.slow = None
        self._report(out)

    def _run(self) -> None:
        state, runner = self.state, self._runner
        if not self._commits.crowded:
            self._parking.resume_ready()
        crowded = state.outbox_full
        self._fire_due(crowded)
        if state.intake.line and not runner.full() and not state.behind:
            ahead_allowed = not (crowded or state.cells.overfull or self._checkpoints.releasing)
            runner.run_line(ahead_allowed, self._firing.run_due_of if crowded else None)

    def _fire_due(self, crowded: bool) -> None:
        """Fire the timers that are due; ``crowded``: those alone that may hold the watermark (G13).

        While the outbox is full, a timer waits if a production that is not ACKed holds the watermark as low as any
        hold of a timer or key. Consumers take that production in, though they are full, so the timers' turn comes (G8).

        A record that holds the watermark runs behind the timers of its key (``run_due_of``). Where due timers are
        still in the store, it is not known which keys have some, and no timer waits.
        """
        state, firing = self.state, self._firing
        upto, waits = state.due_until(False), False
        if crowded and not (state.behind and state.has_holder):
            pending = state.outbox.pending.min()
            waits = pending <= state.hold_times.stated.min()
            if waits:
                upto = min(upto, pending - 1)
        firing.run_due(False, upto)
        if waits:
            return
        if state.ahead:
            firing.run_ahead()
        firing.run_due(True, state.due_until(True))

    def _advance_watermark(self) -> None:
        """Input watermark = min(the senders' broadcast values, own received and uncommitted records), monotone (G7)."""
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
        """Output watermark = min(input watermark, pending productions, holds) (section 4.5), and which one it is."""
        state = self.state
        output, hold = state.watermark, HoldKind.HOLD_KIND_INPUT
        pending = state.intake.pending.min()
        if pending <= output:
            output, hold = pending, HoldKind.HOLD_KIND_RECORD
        for value, kind in (
            (state.outbox.pending.min(), HoldKind.HOLD_KIND_PRODUCTION),
            (_before_end(state.timers[False].next_time()), HoldKind.HOLD_KIND_TIMER),
            (_before_end(state.far.first(False)), HoldKind.HOLD_KIND_TIMER),
            (state.hold_times.min(), HoldKind.HOLD_KIND_STATE),
        ):
            if value is not None and value < output:
                output, hold = value, kind
        return output, hold

    def explain_hold(self) -> tuple[HoldKind.ValueType, str]:
        """What holds the output watermark at this moment, and which record, timer, production or key that is."""
        held, hold = self._held()
        return hold, hold_subject(self.state, hold, max(held, self.state.output))

    def _report(self, out: list[Instruction]) -> None:
        """Report the output watermark, which never goes back, if it has changed, or if what holds it has."""
        state = self.state
        output, hold = self._held()
        state.output = output = max(output, state.output)
        witness, failures = hold_witness(state, hold)
        reported = (output, state.watermark, hold, witness)
        at_once = self._reported_failures == 0 or failures == BLOCKED
        rested = at_once or state.elapsed - self._reported_at >= _SAY_AGAIN
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


def _before_end(at: int | None) -> int | None:
    """What a timer holds the watermark at: one for the end itself keeps that from being told before it has fired."""
    return None if at is None else min(at, LAST_TIMESTAMP)


class _Busy:
    """The keys whose cells are in use and must stay."""

    def __init__(self, runner: Runner, state: IntervalState) -> None:
        self._contexts = runner.batch.contexts
        self._parked = state.intake.parked

    def __contains__(self, key: object) -> bool:
        return key in self._contexts or key in self._parked
