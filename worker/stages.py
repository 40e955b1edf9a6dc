"""The stages of every owner of a journal: of a key interval, or of a stream's log (sections 6.2, 7.1).

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
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Delivery,
    Deposed,
    FenceJournal,
    Opened,
    OpenFailed,
    OwnerEffect,
    Parent,
    Started,
)

__all__ = ["Handler", "OwnerConfig", "OwnerPhase", "OwnerStages"]

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


class OwnerStages(ABC, Generic[EffectT]):
    """One owner of a journal, from its opening to its loss. ``OwnerCore`` adds what it does with events."""

    def __init__(self, config: OwnerConfig) -> None:
        self.phase = OwnerPhase.OPENING
        self._config = config
        self._handlers: dict[type, Handler] = {
            Started: self._on_started,
            Delivery: self._deliveries(serving=False),
            Opened: self._on_opened,
            Accepted: self._on_accepted,
            OpenFailed: self._on_lost,
            Deposed: self._on_lost,
        }

    @property
    def keys(self) -> KeyInterval:
        """The keys that it owns."""
        return self._config.keys

    # What an interval and a log do differently.

    @abstractmethod
    def _recover(self, opened: Opened) -> None:
        """Rebuild the cached state from the journal."""

    @abstractmethod
    def _serve(self, watermark: int) -> Sequence[EffectT]:
        """The owner begins to serve. ``watermark`` is the last broadcast value for its keys."""

    @abstractmethod
    def _opened(self) -> None:
        """The journal is read, and its committed ids are known."""

    @abstractmethod
    def _deliveries(self, serving: bool) -> Handler:
        """Processes deliveries, while the owner serves and before."""

    def _end(self) -> Sequence[EffectT]:
        """The owner is lost."""
        return ()

    # Stages.

    def _on_started(self, event: Started) -> Sequence[OwnerEffect]:
        config = self._config
        return [FenceJournal(config.journal, config.sequencer, config.parents)]

    def _on_opened(self, event: Opened) -> Sequence[OwnerEffect]:
        self._recover(event)
        self._opened()
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
