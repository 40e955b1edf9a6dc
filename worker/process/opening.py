"""Opening an interval's journal: a new owner's steps before it works (sections 6.2, 7.1; G3, G11).

A moved interval's journal is fenced and read. A child's journal is created first, if it does not exist: its parents'
journals are sealed, and it starts at their largest commit. Invariant: any owner that the catalog has ever named may
repeat any step, in any order. So a split or merge only ever moves forward (docs/decisions/0012-moves-splits-merges.md).
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.interval.commits.divided import names_base
from millwheel.worker.interval.spilled_timers import is_spilled
from millwheel.worker.messages import FenceJournal, Opened, OpenedParent, Parent

__all__ = ["Opener", "ReadAhead", "needed_parts", "without_garbage_collection"]

_UNREAD: Final = f"{SEGMENT_PART}/ids/"
"""Id segments are read when a filter hits. A takeover reads only the filters."""

Retry = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Repeats a call until its outcome is known."""

ReadAhead = dict[tuple[str, PartId], bytes]
"""Base parts that were read before they were needed. A part never changes."""


def needed_parts(parts: Sequence[PartId]) -> list[PartId]:
    """The parts of a head that a takeover reads: neither id segments nor spilled timers."""
    return [part for part in parts if not part.name.startswith(_UNREAD) and not is_spilled([part])]


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection. A takeover creates hundreds of thousands of objects, and almost no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Opener:
    """Opens one journal, for one sequencer."""

    def __init__(self, store: StateStore, fence: FenceJournal, retry: Retry, ahead: ReadAhead) -> None:
        self._store = store
        self._fence = fence
        self._retry = retry
        self._ahead = ahead
        self._heads: dict[str, JournalHead] = {}
        """The heads of parents that this object sealed."""

    async def open(self) -> Opened:
        """Fence the journal and read what the owner needs.

        Raises:
            SequencerRefusedError: There is a newer owner.
            JournalMissingError: A journal is missing, although this process's catalog names it.
            CorruptValueError: A stored value that a head names is missing or damaged.
        """
        head = await self._take()
        needed = () if names_base(head.parts) else self._fence.parents
        parents = [await self._read_parent(parent) for parent in needed]
        parts, entries = await self._read(self._fence.journal, head)
        return Opened(head, parts, entries, parents)

    async def _take(self) -> JournalHead:
        """Fence the journal. A child's journal is created if it does not exist."""
        try:
            return await self._fenced()
        except JournalMissingError:
            if not self._fence.parents:
                raise
        store, journal = self._store, self._fence.journal
        sealed = [await self._sealed(parent) for parent in self._fence.parents]
        start = max(head.commit for head in sealed)
        # If it exists, another owner has already created it, from the same sealed heads. These cannot change.
        with suppress(JournalExistsError):
            await self._retry(lambda: store.create_journal(journal, start))
        return await self._fenced()

    async def _sealed(self, parent: Parent) -> JournalHead:
        head: JournalHead = await self._retry(lambda: self._store.seal(parent.journal, self._fence.sequencer))
        self._heads[parent.journal] = head
        return head

    async def _fenced(self) -> JournalHead:
        """Fence the journal. After a call of unknown outcome, a refusal that names this sequencer means success."""
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

        head: JournalHead = await self._retry(attempt)
        return head

    async def _read_parent(self, parent: Parent) -> OpenedParent:
        """A parent's last head and its content. The parent is sealed, because the child's journal exists."""
        head = self._heads.get(parent.journal) or await self._retry(lambda: self._store.read_head(parent.journal))
        if head.sequencer != TERMINAL_SEQUENCER:
            head = await self._sealed(parent)
        parts, entries = await self._read(parent.journal, head)
        # A child copies its parents' spilled timers into its own base, limited to its keys.
        spilled = [part for part in head.parts if is_spilled([part])]
        if spilled:
            blobs = await self._retry(lambda: self._store.read_parts(parent.journal, spilled))
            parts.update(zip(spilled, blobs, strict=True))
        return OpenedParent(parent, head, parts, entries)

    async def _read(self, journal: str, head: JournalHead) -> tuple[dict[PartId, bytes], list[bytes]]:
        """The parts of a head, and the entries above its truncation point.

        A part that a takeover does not read is there without bytes: only its name counts.
        """
        needed = needed_parts(head.parts)
        parts = dict.fromkeys(head.parts, b"")
        parts.update((part, self._ahead[journal, part]) for part in needed if (journal, part) in self._ahead)
        missing = [part for part in needed if (journal, part) not in self._ahead]
        if missing:
            blobs = await self._retry(lambda: self._store.read_parts(journal, missing))
            parts.update(zip(missing, blobs, strict=True))
        entries: list[bytes] = []
        if head.commit > head.truncation_point:
            entries = await self._retry(
                lambda: self._store.read_entries(journal, head.truncation_point + 1, head.commit)
            )
        return parts, entries
