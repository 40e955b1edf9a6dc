"""A shard's calls to its store. Each call is repeated until its outcome is known (7.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.store.contract import Append, PartId, StateStore
from millwheel.store.repetition import RetriedCalls

__all__ = ["JournalWriter", "read_core"]

_MAX_ENTRIES_PER_READ: Final = 256
"""The number of entries that one call reads at a restart."""

_LONGEST_REST_SECONDS: Final = 0.1
"""To encode a part takes some 10 ms. A longer time is a pause of the process, and it would be added once more."""


async def read_core(store: StateStore, journal: str, sequencer: int, settings: CoreSettings) -> AuthorityCore:
    """Fence ``journal`` and read a core from it. Delete parts of earlier owners that its head does not name.

    Raises SequencerRefusedError if a newer process owns the journal, JournalMissingError if it was never created.
    Raises StoreUnavailableError if the outcome is unknown: draw a new sequencer and read again.
    """
    head = await store.fence(journal, sequencer)
    core = AuthorityCore(journal, sequencer, head, settings)
    entries: list[bytes] = []
    for first in range(head.truncation_point + 1, head.commit + 1, _MAX_ENTRIES_PER_READ):
        last = min(first + _MAX_ENTRIES_PER_READ - 1, head.commit)
        entries += await store.read_entries(journal, first, last)
    core.restore(await store.read_parts(journal, head.parts), entries)
    # Only parts of earlier owners: a successor may already have written parts that no head names yet.
    older = {part for part in await store.list_parts(journal) if part.sequencer < sequencer}
    await store.delete_parts(journal, sorted(older.difference(head.parts)))
    return core


class JournalWriter:
    """The writer of one shard's journal."""

    def __init__(self, store: StateStore, journal: str) -> None:
        self._store = store
        self._journal = journal
        self._retried = RetriedCalls(f"authority shard {journal}")

    async def append(self, append: Append) -> None:
        """Append to the journal, repeating the identical bytes.

        Raises SequencerRefusedError if the append never succeeds.
        """
        await self._retried.append(self._store, self._journal, append)

    async def write_parts(self, snapshot: BaseSnapshot) -> None:
        """Write all parts of ``snapshot``, one after the other.

        To encode a part blocks the event loop. After it, reports and broadcasts get as much time, within a bound.
        A report passes several turns of the loop on its way, and none of them may wait for several parts.
        """
        clock, parts = asyncio.get_running_loop().time, snapshot.parts()
        began = clock()
        while (made := next(parts, None)) is not None:
            took = clock() - began
            await self._retried.call(partial(self._store.write_part, self._journal, *made))
            await asyncio.sleep(min(took, _LONGEST_REST_SECONDS))
            began = clock()

    async def tidy(self, below: int, parts: Sequence[PartId]) -> None:
        """Delete entries and parts that no restart reads any more."""
        await self._retried.call(lambda: self._store.delete_entries(self._journal, below))
        await self._retried.call(lambda: self._store.delete_parts(self._journal, parts))
