"""The stages of every owner of a journal: of a key interval, or of a stream's log (sections 6.2, 7.1).

1. It fences the journal and reads it (G3). Then it replays the journal.
2. It has the authority accept its sequencer (G4).
3. It serves.
4. It is lost: at the first refusal by the store, the authority or a receiver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.model.watermarks import InputWatermark
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.id_segments import AdmissionState
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    CatalogChanged,
    Delivery,
    Deposed,
    FenceJournal,
    GroupWatermarks,
    Opened,
    OpenFailed,
    OwnerEffect,
    Parent,
    Report,
    SequenceChecked,
    Started,
)

__all__ = ["OwnerConfig", "OwnerCore", "OwnerPhase"]

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")

Handler = Callable[[Any], Sequence[Any] | None]
"""Processes an event of one type. None: there is no effect."""


class OwnerPhase(Enum):
    """The stage that an owner has reached."""

    OPENING = "taking the journal"
    ACCEPTING = "waiting for the authority"
    SERVING = "serving"
    LOST = "not the owner any more"


class OwnerConfig(Protocol):
    """The identity of an owner: its journal and its sequencer. One worker with two sequencers is two owners."""

    @property
    def incarnation(self) -> IncarnationId: ...
    @property
    def journal(self) -> str: ...
    @property
    def keys(self) -> KeyInterval: ...
    @property
    def sequencer(self) -> int: ...
    @property
    def parents(self) -> tuple[Parent, ...]: ...


class OwnerCore(ABC, Generic[EventT, EffectT]):
    """One owner of a journal: a worker under one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says.

    Invariant: no effect of a commit leaves the core before the preceding commit is in the journal. An older owner that
    wakes up after a pause could break it. The fence refuses its appends, and the authority refuses its reports. At the
    first refusal the owner is lost: it ACKs, sends and reports nothing more.
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
        self.phase = OwnerPhase.OPENING
        self._config = config
        self._inputs = inputs
        self._ids = ids
        self._admission = admission
        self._look = look
        self._lives: Mapping[str, int] = {}
        """The floor of each injector group's life, as the catalog shows it."""
        self._early: dict[str, dict[KeyInterval | str, int]] = {}
        """The sequencers of groups that were broadcast before the committed ids were known."""
        self._handlers: dict[type, Handler] = {
            Started: self._on_started,
            Delivery: self._deliveries(serving=False),
            GroupWatermarks: self._on_watermarks,
            CatalogChanged: self._on_catalog_changed,
            SequenceChecked: admission.lookups.sequence_checked,
            Opened: self._on_opened,
            Accepted: self._on_accepted,
            OpenFailed: self._on_lost,
            Deposed: self._on_lost,
        }

    @property
    def keys(self) -> KeyInterval:
        """The keys that it owns."""
        return self._config.keys

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
    def _recover(self, opened: Opened) -> None:
        """Rebuild the cached state from the journal."""

    @abstractmethod
    def _serve(self, watermark: int) -> Sequence[EffectT]:
        """The owner begins to serve. ``watermark`` is the last broadcast value for its keys."""

    @abstractmethod
    def _pump(self) -> Sequence[EffectT]:
        """After each event: do every step that is possible now."""

    @abstractmethod
    def _deliveries(self, serving: bool) -> Handler:
        """Processes deliveries, while the owner serves and before."""

    def _end(self) -> Sequence[EffectT]:
        """The owner is lost."""
        return ()

    def _answer_lost(self, event: EventT) -> Sequence[EffectT]:
        """An event after the loss."""
        return ()

    # Stages.

    def _on_started(self, event: Started) -> Sequence[OwnerEffect]:
        config = self._config
        return [FenceJournal(config.journal, config.sequencer, config.parents)]

    def _on_opened(self, event: Opened) -> Sequence[OwnerEffect]:
        self._recover(event)
        self._begin_lives({})
        self._forget_ids(self._ids.watermarks, {group: known.items() for group, known in self._early.items()})
        self._early.clear()
        self._admission.forget_ended()
        self.phase = OwnerPhase.ACCEPTING
        config = self._config
        return [AcceptSequencer(config.incarnation, config.keys, config.sequencer)]

    def _on_accepted(self, event: Accepted) -> Sequence[EffectT]:
        self.phase = OwnerPhase.SERVING
        self._handlers[Delivery] = self._deliveries(serving=True)
        return self._serve(event.watermark)

    def _on_lost(self, event: Deposed | OpenFailed) -> Sequence[EffectT]:
        self.phase = OwnerPhase.LOST
        return self._end()

    # Groups.

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

    def _on_catalog_changed(self, event: CatalogChanged) -> None:
        if event.slack is not None:
            self._ids.slack = event.slack
        for group, floor in event.lives.items():
            # The value of a former life may be above that of the present one (G7).
            if floor > self._lives.get(group, floor):
                self._inputs.restart(group)
                self._ids.watermarks.pop(group, None)
        before, self._lives = self._lives, {**self._lives, **event.lives}
        if self.phase is not OwnerPhase.OPENING:
            self._begin_lives(before)
        self._admission.retire(event.retired)
        self._admission.end(event.ended_injectors, event.ended_queries)
        inputs = self._inputs
        known = inputs.groups.keys()
        for group in event.groups.difference(known):
            inputs.add(group)
        for group in known - event.groups:
            inputs.remove(group)
        watermarks = self._ids.watermarks
        for group in watermarks.keys() - event.groups - event.beside:
            del watermarks[group]

    def _begin_lives(self, before: Mapping[str, int]) -> None:
        """Drop the ids of former lives, once the committed ids are known. ``before``: the lives known earlier."""
        if self._ids.exactly_once:
            for group, floor in self._lives.items():
                self._ids.dedup.begin_life(group, floor, first=group not in before)

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
