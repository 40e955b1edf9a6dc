"""A shard's calls to its store. Each call is repeated until its outcome is known (7.2)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from millwheel.authority.base import BaseSnapshot
from millwheel.authority.core import AuthorityCore, CoreSettings
from millwheel.model.backoff import Backoff
from millwheel.store.contract import Append, PartId, SequencerRefusedError, StateStore, StoreUnavailableError

__all__ = ["JournalWriter", "read_core"]

log = logging.getLogger("millwheel.authority")

_MAX_ENTRIES_PER_READ: Final = 256
"""The number of entries that one call reads at a restart."""


async def read_core(store: StateStore, journal: str, sequencer: int, settings: CoreSettings) -> AuthorityCore:
    """Fence ``journal`` and read a core from it. Delete parts of earlier owners that its head does not name.

    Raises SequencerRefusedError if a newer process owns the journal, JournalMissingError if it was never created.
    Raises StoreUnavailableError if the outcome is unknown: draw a new sequencer and read again.
    """
    head = await store.fence(journal, sequencer)
    core = AuthorityCore(journal, sequencer, head, settings)
    entries: list[bytes] = []
    for first in range(head.floor + 1, head.commit + 1, _MAX_ENTRIES_PER_READ):
        last = min(first + _MAX_ENTRIES_PER_READ - 1, head.commit)
        entries += await store.read_entries(journal, first, last)
    core.restore(await store.read_parts(journal, head.parts), entries)
    # Only parts of earlier owners: a successor may already have written parts that no head names yet.
    older = {part for part in await store.list_parts(journal) if part.sequencer < sequencer}
    await store.delete_parts(journal, sorted(older.difference(head.parts)))
    return core


class JournalWriter:
    """The writer of one shard's journal."""

    def __init__(self, store: StateStore, journal: str, backoff: Backoff | None = None) -> None:
        self._store = store
        self._journal = journal
        self._backoff = backoff or Backoff(first=0.02)

    async def append(self, append: Append) -> None:
        """Append to the journal, repeating the identical bytes.

        Raises SequencerRefusedError if the append never succeeds.
        """
        uncertain = False

        async def attempt() -> None:
            nonlocal uncertain
            try:
                await self._store.append(self._journal, append)
            except StoreUnavailableError:
                uncertain = True
                raise
            except SequencerRefusedError as error:
                # Refused with our sequencer and number after an attempt of unknown outcome: that attempt was applied.
                if not uncertain or (error.sequencer, error.commit) != (append.sequencer, append.commit):
                    raise

        await self._until_certain(attempt)

    async def write_parts(self, snapshot: BaseSnapshot) -> None:
        """Write all parts of ``snapshot``, one after the other."""
        for part, blob in snapshot.parts():
            await self._write_part(part, blob)
            await asyncio.sleep(0)  # encoding a part blocks the event loop for a while: let other tasks run

    async def tidy(self, below: int, parts: Sequence[PartId]) -> None:
        """Delete entries and parts that no restart reads any more."""
        await self._until_certain(lambda: self._store.delete_entries(self._journal, below))
        await self._until_certain(lambda: self._store.delete_parts(self._journal, parts))

    async def _write_part(self, part: PartId, blob: bytes) -> None:
        await self._until_certain(lambda: self._store.write_part(self._journal, part, blob))

    async def _until_certain(self, attempt: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            try:
                return await attempt()
            except StoreUnavailableError as error:
                failures += 1
                log.warning("authority shard %s: %s; trying again", self._journal, error)
            await asyncio.sleep(self._backoff.delay(failures, random.random()))
