"""What every owner of a journal does: of a key interval, or of a stream's log (sections 4.5, 6.2, 7.1).

1. It fences the journal and reads it (G3). Then it replays the journal.
2. It has the authority accept its sequencer (G4).
3. It serves.
4. It is lost: at the first refusal by the store, the authority or a receiver.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import KeyInterval
from millwheel.worker.followed_senders import FollowedSenders
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
    SequenceChecked,
    Started,
)

__all__ = ["Handler", "OwnerConfig", "OwnerCore", "OwnerPhase", "OwnerPump"]

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


class OwnerPump(ABC, Generic[EventT, EffectT]):
    """What an owner does after each event while it serves. It is a part of the owner's core."""

    @abstractmethod
    def run(self, event: EventT) -> Sequence[EffectT]:
        """Do every step that is possible after ``event``."""

    @abstractmethod
    def next_deadline(self) -> int | None:
        """When a Tick is due if no event comes before. None: never."""


class OwnerCore(ABC, Generic[EventT, EffectT]):
    """One owner of a journal: a worker under one sequencer. Driven as :class:`millwheel.model.core_protocol.Core` says.

    Invariant: no ACK, strong production or report of a commit leaves the core before that commit is in the journal.
    Weak productions leave earlier (section 5.2): their ids follow from their cause, so a repetition is a duplicate.
    An older owner that wakes up after a pause could break it. The fence refuses its appends, and the authority
    refuses its reports. At the first refusal the owner is lost: it ACKs, sends and reports nothing more.
    """

    def __init__(
        self,
        config: OwnerConfig,
        senders: FollowedSenders,
        set_now: Callable[[int], None],
        pump: OwnerPump[EventT, EffectT],
    ) -> None:
        """
        Args:
            config: Its identity.
            senders: What it learns of its senders.
            set_now: Sets its clock.
            pump: Runs after each event.
        """
        self.phase = OwnerPhase.OPENING
        self._config = config
        self._senders = senders
        self._set_now = set_now
        self._pump = pump
        self._handlers: dict[type, Handler] = {
            Started: self._on_started,
            Delivery: self._delivery_handler(serving=False),
            Opened: self._on_opened,
            Accepted: self._on_accepted,
            OpenFailed: self._on_lost,
            Deposed: self._on_lost,
            GroupWatermarks: senders.broadcast,
            CatalogChanged: senders.catalog_changed,
            SequenceChecked: senders.sequence_checked,
        }

    @property
    def keys(self) -> KeyInterval:
        """The keys that it owns."""
        return self._config.keys

    def step(self, event: EventT, now: int) -> Sequence[EffectT]:
        """Process ``event`` at ``now``, in microseconds of its clock."""
        if self.phase is OwnerPhase.LOST:
            return self._answer_lost(event)
        self._set_now(now)
        out: list[EffectT] = list(self._handlers[type(event)](event) or ())
        if self.phase is OwnerPhase.SERVING:
            out.extend(self._pump.run(event))
        return out

    def next_deadline(self) -> int | None:
        """The time at which a Tick is due if no other event comes before, on its clock. None: no Tick is needed."""
        return self._pump.next_deadline() if self.phase is OwnerPhase.SERVING else None

    # What an interval and a log do differently.

    @abstractmethod
    def _recover(self, opened: Opened) -> None:
        """Rebuild the cached state from the journal."""

    @abstractmethod
    def _serve(self, watermark: int) -> Sequence[EffectT]:
        """The owner begins to serve. ``watermark`` is that of :class:`Accepted`."""

    @abstractmethod
    def _delivery_handler(self, serving: bool) -> Handler:
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
        self._senders.opened()
        self.phase = OwnerPhase.ACCEPTING
        config = self._config
        return [AcceptSequencer(config.incarnation, config.keys, config.sequencer)]

    def _on_accepted(self, event: Accepted) -> Sequence[EffectT]:
        self.phase = OwnerPhase.SERVING
        self._handlers[Delivery] = self._delivery_handler(serving=True)
        return self._serve(event.watermark)

    def _on_lost(self, event: Deposed | OpenFailed) -> Sequence[EffectT]:
        self.phase = OwnerPhase.LOST
        return self._end()
