"""What a worker process stores about an interval that it runs, or that is quarantined."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.model.catalog import OwnedInterval
from millwheel.worker.shell.building import Built
from millwheel.worker.shell.destinations import LocalChannel
from millwheel.worker.shell.host import CoreHost

__all__ = ["Hosted", "Quarantined"]


@dataclass(slots=True)
class Hosted:
    """An interval that this process runs."""

    host: CoreHost
    owned: OwnedInterval
    built: Built
    channel: LocalChannel

    @property
    def sequencer(self) -> int:
        """The sequencer that it was opened under."""
        return self.owned.interval.sequencer


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An interval that is stopped because a stored value that it needs is missing or damaged: ``why``."""

    incarnation: str
    topology: str
    computation: str
    why: str
