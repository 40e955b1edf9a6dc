"""The newest watermarks and sequencers of senders, for receivers that cannot use every update (7.1; G8)."""

from __future__ import annotations

from collections.abc import Collection

from millwheel.model.keys import KeyInterval
from millwheel.worker.messages import SenderWatermarks

__all__ = ["LatestWatermarks"]


class LatestWatermarks:
    """Merges many updates into one. It serves receivers that join later, or that could not process updates before."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._sequencers: dict[str, dict[KeyInterval | str, int]] = {}

    def add(self, update: SenderWatermarks) -> None:
        """Merge an update. Neither values nor sequencers go back."""
        for sender, value in update.values.items():
            self._values[sender] = max(value, self._values.get(sender, value))
            known = self._sequencers.setdefault(sender, {})
            for member, sequencer in update.sequencers.get(sender, ()):
                known[member] = max(sequencer, known.get(member, sequencer))

    def keep(self, senders: Collection[str]) -> None:
        """Drop all senders except these."""
        for sender in self._values.keys() - senders:
            del self._values[sender], self._sequencers[sender]

    def update(self) -> SenderWatermarks:
        """The merged update."""
        sequencers = {sender: list(members.items()) for sender, members in self._sequencers.items()}
        return SenderWatermarks(dict(self._values), sequencers)
