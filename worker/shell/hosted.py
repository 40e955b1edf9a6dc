"""What a worker process knows of an interval that it runs, or of one that stands still."""

from __future__ import annotations

from dataclasses import dataclass

from millwheel.core.catalog import OwnedInterval
from millwheel.worker.shell.building import Built
from millwheel.worker.shell.channels import LocalChannel
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
        """The one that it was opened under."""
        return self.owned.interval.sequencer


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An interval that stands still because ``why``, a stored value that it relies on, is missing or damaged."""

    incarnation: str
    topology: str
    computation: str
    why: str
