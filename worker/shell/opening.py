"""Opening an interval's journal: what a new owner does to it before it works (sections 6.2, 7.1; G3, G11).

A moved interval's journal is fenced and read. A child's is created first, if nobody has: its parents' journals
are sealed, and it starts at their largest commit. Every step may be repeated, by anyone whom the catalog
has made the owner and in any order, so a split or merge is only ever rolled forward
(docs/decisions/0012-moves-splits-merges.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from millwheel.store.contract import (
    TERMINAL_SEQUENCER,
    JournalExistsError,
    JournalHead,
    JournalMissingError,
    PartId,
    SequencerRefusedError,
    StateStore,
    StoreUnavailableError,
)
from millwheel.worker.interval.divided import names_base
from millwheel.worker.interval.far import is_far
from millwheel.worker.judging import SEGMENT_PART
from millwheel.worker.messages import FenceJournal, Opened, OpenedParent, Parent

__all__ = ["Opener", "ReadAhead", "needed_parts"]

_UNREAD: Final = f"{SEGMENT_PART}/ids/"
"""Id segments are read when a filter hits; a takeover takes only the filters."""

Certain = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Repeats a call until its outcome is known."""

ReadAhead = dict[tuple[str, PartId], bytes]
"""Base parts that have been read before they were needed: a part never changes."""


def needed_parts(parts: Sequence[PartId]) -> list[PartId]:
    """Those of the parts named by a head that a takeover reads: neither id segments nor far timers."""
    return [part for part in parts if not part.name.startswith(_UNREAD) and not is_far([part])]


class Opener:
    """Opens one journal, for one sequencer."""

    def __init__(self, store: StateStore, fence: FenceJournal, certain: Certain, ahead: ReadAhead) -> None:
        self._store = store
        self._fence = fence
        self._certain = certain
        self._ahead = ahead
        self._heads: dict[str, JournalHead] = {}
        """Of parents that were sealed here."""

    async def open(self) -> Opened:
        """Take the journal and read what is needed of it.

        SequencerRefusedError: there is a newer owner; JournalMissingError, CorruptValueError: something is gone that
        the catalog, as this process knows it, says is there.
        """
        head = await self._take()
        needed = () if names_base(head.parts) else self._fence.parents
        parents = [await self._read_parent(parent) for parent in needed]
        parts, entries = await self._read(self._fence.journal, head)
        return Opened(head, parts, entries, parents)

    async def _take(self) -> JournalHead:
        """Fence the journal; that of a child is created if it does not exist."""
        try:
            return await self._fenced()
        except JournalMissingError:
            if not self._fence.parents:
                raise
        store, journal = self._store, self._fence.journal
        sealed = [await self._sealed(parent) for parent in self._fence.parents]
        start = max(head.commit for head in sealed)
        # If it exists, somebody else has rolled it forward so far: from the same heads, which cannot change.
        with suppress(JournalExistsError):
            await self._certain(lambda: store.create_journal(journal, start))
        return await self._fenced()

    async def _sealed(self, parent: Parent) -> JournalHead:
        head: JournalHead = await self._certain(lambda: self._store.seal(parent.journal, self._fence.sequencer))
        self._heads[parent.journal] = head
        return head

    async def _fenced(self) -> JournalHead:
        """Take the journal. Refused with our own sequencer after a call of unknown outcome means that call took it."""
        store, fence = self._store, self._fence
        uncertain = False

        async def attempt() -> JournalHead:
            nonlocal uncertain
            try:
                return await store.fence(fence.journal, fence.sequencer)
            except StoreUnavailableError:
                uncertain = True
                raise
            except SequencerRefusedError as error:
                if not uncertain or error.sequencer != fence.sequencer:
                    raise
            head = await store.read_head(fence.journal)
            if head.sequencer != fence.sequencer:
                raise SequencerRefusedError(fence.journal, head.sequencer, head.commit)
            return head

        head: JournalHead = await self._certain(attempt)
        return head

    async def _read_parent(self, parent: Parent) -> OpenedParent:
        """A parent's last head, and what it names. It is sealed: the child's journal exists."""
        head = self._heads.get(parent.journal) or await self._certain(lambda: self._store.read_head(parent.journal))
        if head.sequencer != TERMINAL_SEQUENCER:
            head = await self._sealed(parent)
        parts, entries = await self._read(parent.journal, head)
        # A child takes its parents' far timers into its own base, cut to its keys.
        far = [part for part in head.parts if is_far([part])]
        if far:
            blobs = await self._certain(lambda: self._store.read_parts(parent.journal, far))
            parts.update(zip(far, blobs, strict=True))
        return OpenedParent(parent, head, parts, entries)

    async def _read(self, journal: str, head: JournalHead) -> tuple[dict[PartId, bytes], list[bytes]]:
        needed = needed_parts(head.parts)
        parts = dict.fromkeys(head.parts, b"")
        parts.update((part, self._ahead[journal, part]) for part in needed if (journal, part) in self._ahead)
        missing = [part for part in needed if (journal, part) not in self._ahead]
        if missing:
            blobs = await self._certain(lambda: self._store.read_parts(journal, missing))
            parts.update(zip(missing, blobs, strict=True))
        entries: list[bytes] = []
        if head.commit > head.floor:
            entries = await self._certain(lambda: self._store.read_entries(journal, head.floor + 1, head.commit))
        return parts, entries
