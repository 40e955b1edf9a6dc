"""What many broadcasts of low watermarks come to: each sender's newest value, and the sequencers behind it (7.2)."""

from __future__ import annotations

from collections.abc import Collection

from millwheel.core.keys import KeyInterval
from millwheel.worker.messages import SenderWatermarks

__all__ = ["HeardWatermarks"]


class HeardWatermarks:
    """Updates in, one update out that says as much as all of them: for whoever comes later, or could not listen yet."""

    def __init__(self) -> None:
        self._values: dict[str, int] = {}
        self._sequencers: dict[str, dict[KeyInterval | str, int]] = {}

    def add(self, update: SenderWatermarks) -> None:
        """Take an update in; neither values nor sequencers go back."""
        for sender, value in update.values.items():
            self._values[sender] = max(value, self._values.get(sender, value))
            known = self._sequencers.setdefault(sender, {})
            for member, sequencer in update.sequencers.get(sender, ()):
                known[member] = max(sequencer, known.get(member, sequencer))

    def keep(self, senders: Collection[str]) -> None:
        """Forget all senders but these."""
        for sender in self._values.keys() - senders:
            del self._values[sender], self._sequencers[sender]

    def update(self) -> SenderWatermarks:
        """Everything heard."""
        sequencers = {sender: list(members.items()) for sender, members in self._sequencers.items()}
        return SenderWatermarks(dict(self._values), sequencers)
