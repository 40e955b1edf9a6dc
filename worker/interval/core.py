"""The core of one owned key interval: a pure state machine (sections 4, 5.1, 6.1, 6.2).

The core takes an event and the wall-clock time, and returns effects (:mod:`millwheel.model.core_protocol`). It has the
stages of every owner (:mod:`millwheel.worker.owner`). While it serves, a record passes these steps: delivery →
duplicate check → hooks on cached state → one conditional append → ACK to the sender → productions sent until their
consumers ACK them.

One commit is in flight at a time. Meanwhile the next batch runs on the in-memory state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.compiled import CompiledComputation
from millwheel.sdk.scope import OutputBinding
from millwheel.worker.followed_senders import FollowedSenders
from millwheel.worker.interval.commits.commits import CommitPipeline
from millwheel.worker.interval.commits.parents import ParentNeed
from millwheel.worker.interval.commits.traced_sealing import sealer_for
from millwheel.worker.interval.early_deliveries import EarlyDeliveries
from millwheel.worker.interval.failing_keys import FailingKeys
from millwheel.worker.interval.hold_explanations import hold_subject, waits_for_input
from millwheel.worker.interval.hook_meter import HookMeter
from millwheel.worker.interval.hooks.running_hooks import AwaitedHook
from millwheel.worker.interval.hooks.scheduler import KeyScheduler
from millwheel.worker.interval.invariants import IntervalInvariants
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.interval.recovery import recover
from millwheel.worker.interval.state import IntervalConfig, IntervalState
from millwheel.worker.interval.store_answers import StoreAnswers
from millwheel.worker.messages import (
    Acknowledged,
    Appended,
    CatalogChanged,
    GiveUp,
    Halted,
    HookFinished,
    IntervalEffect,
    IntervalEvent,
    Opened,
    PartsMissing,
    PartsRead,
    PartsWritten,
    PrepareRelease,
    Refused,
    Resend,
    StatesFlushed,
    StatesRead,
    Tick,
)
from millwheel.worker.owner import Handler, OwnerCore, OwnerPhase
from millwheel.worker.snapshot_holds import SnapshotHolds

__all__ = ["IntervalCore"]


class IntervalCore(OwnerCore[IntervalEvent, IntervalEffect]):
    """One interval, for one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says."""

    def __init__(
        self,
        config: IntervalConfig,
        program: CompiledComputation,
        outputs: dict[str, OutputBinding],
        locate: Callable[[IncarnationId, bytes], str],
        meter: HookMeter | None = None,
        make_pump: type[IntervalPump] = IntervalPump,
    ) -> None:
        """
        Args:
            config: Its identity and limits.
            program: The user's code.
            outputs: Where its productions go.
            locate: Returns the journal that takes a consumer's records with a key.
            meter: Measures the run times of hooks. None: they are not measured.
            make_pump: Makes what runs after each event.
        """
        self.state = state = IntervalState(config, program, outputs, locate, meter)
        self._early_deliveries = EarlyDeliveries(config.settings.queue_bytes)
        self._receiver = IntervalReceiver(state, state.clocks, state.intake, state.ids, state.blocked.is_done)
        self._admission = admission = self._receiver.admission
        self._scheduler = scheduler = KeyScheduler(state)
        self._blocked_keys = blocked_keys = scheduler.blocked_keys
        sealer = sealer_for(state, lambda key, error: blocked_keys.failed(key, None, error))
        self._commits = commits = CommitPipeline(state, scheduler.runner, admission.segments, sealer)
        self._checkpoints = commits.checkpoints
        pump = make_pump(state, scheduler, commits)
        senders = FollowedSenders(state.inputs, state.ids, admission)
        super().__init__(config, senders, state.clocks.set_now, pump)
        self._held = pump.held
        self._invariants = IntervalInvariants(state, scheduler, commits, pump)
        answers = StoreAnswers(state, scheduler, commits, admission)
        self._handlers |= {
            CatalogChanged: self._on_catalog_changed,
            Appended: commits.appended,
            Acknowledged: commits.acknowledged,
            Tick: commits.on_tick,
            Refused: self._on_refused,
            Halted: self._on_halted,
            Resend: self._on_resend,
            StatesRead: answers.states_read,
            StatesFlushed: answers.states_flushed,
            PartsWritten: answers.parts_written,
            PartsRead: answers.parts_read,
            PartsMissing: answers.parts_missing,
            HookFinished: self._on_hook_finished,
            PrepareRelease: self._on_prepare_release,
            **SnapshotHolds(state.journal, lambda: self.phase is OwnerPhase.SERVING).handlers,
        }

    def check_invariants(self) -> None:
        """Check the interval's invariants. It visits all timers and holds, so it is for tests and for finding errors.

        Raises:
            InvariantError: Something that must not fall has fallen, a count is not balanced, or a pass was skipped.
            RuntimeError: A hold was lost, or ended too early.
        """
        self._invariants.check(serving=self.phase is OwnerPhase.SERVING)

    @property
    def independent(self) -> bool:
        """Whether neither this owner nor a successor needs the parents' journals. True if there are no parents."""
        if self.phase is not OwnerPhase.SERVING:
            return not self.state.config.parents
        return self._checkpoints.parents.need is ParentNeed.NOTHING and not self._admission.segments.reads_elsewhere

    @property
    def stopped(self) -> str:
        """Why the failure policy has stopped this interval. Empty while it runs."""
        return self._blocked_keys.stopped

    @property
    def damaged_rows(self) -> Mapping[bytes, str]:
        """The keys whose state rows are damaged, each with the reason.

        Their work waits, or fails by the failure policy.
        """
        return self._blocked_keys.damaged

    @property
    def has_room(self) -> bool:
        """Whether it takes any record. Without room it refuses those ahead of its senders' watermarks."""
        return self._receiver.has_room()

    @property
    def failing(self) -> FailingKeys:
        """The keys that are blocked because a hook raises."""
        return self.state.blocked.failing

    def awaited_hooks(self, before: int, count: int) -> list[AwaitedHook]:
        """Up to ``count`` running asynchronous hooks that started by wall-clock time ``before``, oldest first."""
        return self._blocked_keys.running.awaited(before, count)

    @property
    def meter(self) -> HookMeter:
        """How often hooks ran, and for how long."""
        return self.state.meter

    # Stages of an owner.

    def _recover(self, opened: Opened) -> None:
        recover(self.state, opened)
        self._scheduler.recovered()
        self._checkpoints.recovered(self.state.clocks.elapsed)

    def _serve(self, watermark: int) -> Sequence[IntervalEffect]:
        self.state.clocks.resume(watermark)
        self._receiver.began = self.state.clocks.elapsed
        self.state.output.rise(watermark)
        out = [*self._checkpoints.parents.copy_segments(), *self._commits.resend(Resend())]
        for delivery in self._early_deliveries.take():
            out.extend(self._receiver.deliver(delivery))
        return out

    def _delivery_handler(self, serving: bool) -> Handler:
        return self._receiver.deliver if serving else self._early_deliveries.add

    # Events while serving.

    def _on_catalog_changed(self, event: CatalogChanged) -> None:
        self._senders.catalog_changed(event)
        # What it has read flows out, and its positions stay. So a drain comes to an end.
        self.state.timers.no_processing_time = event.drains and self.state.program.of_source

    def _on_refused(self, event: Refused) -> Sequence[IntervalEffect]:
        return [GiveUp(event.reason)] if self.state.outbox.get(event.token) is not None else []

    def _on_resend(self, event: Resend) -> Sequence[IntervalEffect]:
        return self._commits.resend(event) if self.phase is OwnerPhase.SERVING else []

    def _on_halted(self, event: Halted) -> None:
        self.state.outbox.flows.halt(event.token)

    def _on_prepare_release(self, event: PrepareRelease) -> None:
        self._checkpoints.ask(event.request)

    def _on_hook_finished(self, event: HookFinished) -> None:
        self._blocked_keys.hook_finished(event.hook, event.error)

    # What holds the output watermark.

    def explain_hold(self) -> tuple[HoldKind.ValueType, str]:
        """What holds the output watermark now: the kind, and the sender, record, timer, production or key."""
        held, hold = self._held()
        if hold == HoldKind.HOLD_KIND_INPUT:
            return hold, ", ".join(self.state.inputs.holding())
        return hold, hold_subject(self.state, hold, max(held, self.state.output.value), asked=True)

    def awaited_groups(self) -> list[str]:
        """The groups that hold the input watermark, if a timer that holds the output watermark waits for it."""
        held, hold = self._held()
        waits = waits_for_input(self.state, hold, max(held, self.state.output.value))
        return self.state.inputs.holding() if waits else []
