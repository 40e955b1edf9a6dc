"""What every owner of a journal does with events: of a key interval, or of a stream's log (sections 4.5, 6.2).

Its stages are in ``stages.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from millwheel.model.keys import KeyInterval
from millwheel.model.watermarks import InputWatermark
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.lives import SenderLives
from millwheel.worker.messages import (
    CatalogChanged,
    GroupWatermarks,
    Report,
    SequenceChecked,
)
from millwheel.worker.stages import OwnerConfig, OwnerPhase, OwnerStages

__all__ = ["OwnerCore"]

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")


class OwnerCore(OwnerStages[EffectT], Generic[EventT, EffectT]):
    """One owner of a journal: a worker under one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says.

    Invariant: no ACK, strong production or report of a commit leaves the core before that commit is in the journal.
    Weak productions leave earlier (section 5.2): their ids follow from their cause, so a repetition is a duplicate.
    An older owner that wakes up after a pause could break it. The fence refuses its appends, and the authority
    refuses its reports. At the first refusal the owner is lost: it ACKs, sends and reports nothing more.
    """

    def __init__(
        self,
        config: OwnerConfig,
        inputs: InputWatermark,
        ids: AdmissionState,
        admission: DeliveryAdmission,
        look: Callable[[int], None],
    ) -> None:
        """
        Args:
            config: Its identity.
            inputs: The broadcast watermarks of its groups.
            ids: The ids that it knows.
            admission: Admits its deliveries.
            look: Sets its clock.
        """
        super().__init__(config)
        self._inputs = inputs
        self._ids = ids
        self._admission = admission
        self._look = look
        self._sender_lives = lives = SenderLives(inputs, ids, admission)
        self._early: dict[str, dict[KeyInterval | str, int]] = {}
        """The sequencers of groups that were broadcast before the committed ids were known."""
        self._handlers |= {
            GroupWatermarks: self._on_watermarks,
            CatalogChanged: lives.catalog_changed,
            SequenceChecked: admission.lookups.sequence_checked,
        }

    def step(self, event: EventT, now: int) -> Sequence[EffectT]:
        """Process ``event`` at ``now``, in microseconds of its clock."""
        if self.phase is OwnerPhase.LOST:
            return self._answer_lost(event)
        self._look(now)
        out: list[EffectT] = list(self._handlers[type(event)](event) or ())
        if self.phase is OwnerPhase.SERVING:
            out.extend(self._pump())
        return out

    # What an interval and a log do differently.

    @abstractmethod
    def _pump(self) -> Sequence[EffectT]:
        """After each event: do every step that is possible now."""

    def _answer_lost(self, event: EventT) -> Sequence[EffectT]:
        """An event after the loss."""
        return ()

    # Groups.

    def _opened(self) -> None:
        self._sender_lives.opened()
        self._forget_ids(self._ids.watermarks, {group: known.items() for group, known in self._early.items()})
        self._early.clear()
        self._admission.forget_ended()

    def _on_watermarks(self, event: GroupWatermarks) -> None:
        self._inputs.update(event.values)
        self._ids.received(event.values)
        if self.phase is not OwnerPhase.OPENING:
            self._forget_ids(event.values, event.sequencers)
            return
        for group, sequencers in event.sequencers.items():
            known = self._early.setdefault(group, {})
            for member, sequencer in sequencers:
                known[member] = max(sequencer, known.get(member, sequencer))

    def _forget_ids(
        self, values: Mapping[str, int], sequencers: Mapping[str, Iterable[tuple[KeyInterval | str, int]]]
    ) -> None:
        """Drop ids that no sender can send again, according to broadcast watermarks and the sequencers behind them."""
        ids = self._ids
        if not ids.exactly_once:
            return
        for group, members in sequencers.items():
            ids.dedup.learn(group, members)
        for group, watermark in values.items():
            if group in ids.dedup.opaque_groups:
                ids.advance(group, watermark)

    # Reports.

    def _report_of(self, output: int, watermark: int, hold: HoldKind.ValueType) -> Report:
        """A report to the authority: the output and the input watermark, and what holds the output watermark."""
        config, subject = self._config, self._subject(hold, output)
        return Report(config.incarnation, config.keys, config.sequencer, output, watermark, hold, subject)

    def _subject(self, hold: HoldKind.ValueType, value: int) -> str:
        """What holds the output watermark at ``value``, for people: the slowest groups, or something of the owner."""
        return (
            ", ".join(self._inputs.holding()[:3])
            if hold == HoldKind.HOLD_KIND_INPUT
            else self._own_subject(hold, value)
        )

    def _own_subject(self, hold: HoldKind.ValueType, value: int) -> str:
        return ""
