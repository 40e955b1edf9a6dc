"""What a snapshot asks of the owner of a journal: to keep its truncation point, and to begin no commit for a moment.

Invariant: a ``Freeze`` whose answer is held and settled, and a later ``Thaw`` of the same token whose answer is, too,
enclose a time in which this owner appends nothing. So the journal stands at the answered commit all that time, unless a
newer owner appends. The snapshot recognises a newer owner by the journal's sequencer, which it reads afterwards
(docs/decisions/0034-snapshots.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millwheel.worker.journal import OwnedJournal
from millwheel.worker.messages import Freeze, PinJournal, SnapshotHoldAnswer, Thaw, UnpinJournal
from millwheel.worker.owner import Handler

__all__ = ["SnapshotHolds"]


class SnapshotHolds:
    """The holds of snapshots on one journal. Of two snapshots, the later one's hold counts."""

    def __init__(self, journal: OwnedJournal, serves: Callable[[], bool]) -> None:
        """``serves``: whether the owner has opened the journal, and has not lost it."""
        self._journal = journal
        self._serves = serves

    @property
    def handlers(self) -> dict[type, Handler]:
        """The events that it processes."""
        return {PinJournal: self._pin, UnpinJournal: self._unpin, Freeze: self._freeze, Thaw: self._thaw}

    def _pin(self, event: PinJournal) -> Sequence[SnapshotHoldAnswer]:
        journal, held = self._journal, self._serves()
        if held:
            journal.pinned = event.token
        return [SnapshotHoldAnswer(event.request, held, not journal.base_named, journal.committed)]

    def _unpin(self, event: UnpinJournal) -> None:
        if self._journal.pinned == event.token:
            self._journal.pinned = ""

    def _freeze(self, event: Freeze) -> Sequence[SnapshotHoldAnswer]:
        journal, held = self._journal, self._serves()
        if held:
            journal.frozen = event.token
        return [SnapshotHoldAnswer(event.request, held, journal.all_committed, journal.committed)]

    def _thaw(self, event: Thaw) -> Sequence[SnapshotHoldAnswer]:
        journal = self._journal
        held = journal.frozen == event.token
        if held:
            journal.frozen = ""
        return [SnapshotHoldAnswer(event.request, held and self._serves(), journal.all_committed, journal.committed)]
