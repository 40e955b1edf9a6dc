"""The store of one process: the contract on RocksDB, without a server.

Every write goes through the :class:`~millwheel.store.writer.StoreThread`. It checks the write against the heads in
memory, and commits all waiting writes with one sync. Reads run on separate threads, so the event loop never waits for
them. :class:`~millwheel.embedded.database.EmbeddedDatabase` opens the store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from millwheel.model.envelope import unwrap, wrap
from millwheel.model.incarnation import IncarnationId
from millwheel.store import layout
from millwheel.store.contract import Append, JournalHead, PartId, StateRow, StoreUnavailableError
from millwheel.store.heads import JournalHeads
from millwheel.store.rocks import Rocks, RowBatch
from millwheel.store.rows import DropIncarnation, Purge, StateFlush
from millwheel.store.writer import Notice, StoreThread

__all__ = ["EmbeddedStore", "end_at_once"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_READ_CHUNK_ENTRIES: Final = 512


def end_at_once(reason: str) -> None:
    """End the process without any further work, as a loss of power does. Its successor starts from the disk."""
    log.critical("%s", reason)
    logging.shutdown()
    os._exit(1)


class EmbeddedStore:
    """A :class:`~millwheel.store.contract.StateStore` on a RocksDB that this process owns.

    It has many methods: those of the contract.
    """

    def __init__(
        self,
        rocks: Rocks,
        thread: StoreThread,
        close: Callable[[], None],
        end_process: Callable[[str], None] = end_at_once,
    ) -> None:
        """
        Args:
            rocks: The database.
            thread: Does the writes.
            close: Ends the store thread and the database. Each :meth:`close` calls it, so it must be idempotent.
            end_process: Ends this process like a loss of power, with a reason. It runs on the store thread.
        """
        self._rocks = rocks
        self._thread = thread
        self._close = close
        self._end_process = end_process
        self.heads = JournalHeads(rocks)
        self._readers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="millwheel-store-read")
        thread.on_reload(self._reload)
        self._purge_dropped()

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        """See :meth:`StateStore.create_journal`."""
        await self._thread.call(lambda batch: self.heads.create(journal, commit, batch))

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.fence`."""
        return await self._thread.call(lambda batch: self.heads.fence(journal, sequencer, batch))

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.seal`."""
        return await self._thread.call(lambda batch: self.heads.seal(journal, sequencer, batch))

    async def read_head(self, journal: str) -> JournalHead:
        """See :meth:`StateStore.read_head`. The returned head is durable, and so are the appends before it."""
        return await self._thread.call(lambda _: self.heads.present(journal))

    async def append(self, journal: str, append: Append) -> None:
        """See :meth:`StateStore.append`. Appends of one journal take effect in the order of the calls."""
        await self._thread.call(self._staged(journal, append), sync=append.sync, size=len(append.entry))

    def append_soon(
        self,
        journal: str,
        append: Append,
        done: Callable[[BaseException | None], None],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        """See :meth:`AppendQueue.append_soon`. Those of one turn of the loop share one write."""
        written = partial(self.heads.note_reported, journal, append.commit)
        notice = Notice(asyncio.get_running_loop(), done, written)
        self._thread.begin(notice, self._staged(journal, append), sync=append.sync, size=len(append.entry), soon=soon)

    def after_sync(self, call: Callable[[], None]) -> None:
        """See :meth:`AppendQueue.after_sync`."""
        self._thread.after_sync(call)

    def _staged(self, journal: str, append: Append) -> Callable[[RowBatch], None]:
        def stage(batch: RowBatch) -> None:
            if self.heads.append(journal, append, batch) and self.heads.has_cleared(journal):
                self._thread.call_later(Purge(self._rocks, self.heads, journal, append.truncation_point))

        return stage

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        """See :meth:`StateStore.read_entries`. Reads entries by key, without a scan."""

        def read() -> list[bytes]:
            entries: list[bytes] = []
            for start in range(first, last + 1, _READ_CHUNK_ENTRIES):
                commits = range(start, min(start + _READ_CHUNK_ENTRIES, last + 1))
                values = self._rocks.get([layout.entry_key(journal, commit) for commit in commits])
                for commit, value in zip(commits, values, strict=True):
                    entries.append(unwrap(value, f"entry {commit} of journal {journal}"))
            return entries

        return await self._read(read)

    async def delete_entries(self, journal: str, below: int) -> None:
        """See :meth:`StateStore.delete_entries`. ValueError if a takeover would miss one of them.

        Appends and the event loop take turns with it, and wait for ``MAX_DELETED_ENTRIES`` of them at most.
        """
        while await self._thread.call(lambda batch: self.heads.delete_entries(journal, below, batch), sync=False):
            pass

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        """See :meth:`StateStore.write_part`. JournalMissingError if there is no such journal."""

        def stage(batch: RowBatch) -> None:
            self.heads.present(journal)
            batch.put(layout.part_key(journal, part), wrap(blob))

        await self._thread.call(stage)

    async def read_parts(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        """See :meth:`StateStore.read_parts`."""

        def read() -> list[bytes]:
            values = self._rocks.get([layout.part_key(journal, part) for part in parts])
            return [unwrap(value, _name(journal, part)) for part, value in zip(parts, values, strict=True)]

        return await self._read(read)

    async def list_parts(self, journal: str) -> list[PartId]:
        """See :meth:`StateStore.list_parts`."""
        prefix = layout.part_prefix(journal)
        keys = await self._read(lambda: self._rocks.keys(prefix, layout.past(prefix)))
        return [layout.part_of(journal, key) for key in keys]

    async def delete_parts(self, journal: str, parts: Sequence[PartId]) -> None:
        """See :meth:`StateStore.delete_parts`. ValueError if the committed head names one of them."""
        unneeded = list(parts)
        await self._thread.call(lambda batch: self.heads.delete_parts(journal, unneeded, batch), sync=False)

    async def write_states(
        self, incarnation: IncarnationId, journal: str, sequencer: int, rows: Sequence[StateRow]
    ) -> None:
        """See :meth:`StateStore.write_states`. The rows are not written atomically; appends run between the slices."""
        await self._thread.call_sliced(StateFlush(self._rocks, self.heads, incarnation, journal, sequencer, rows))

    async def read_states(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
        """See :meth:`StateStore.read_states`."""
        prefix = layout.state_prefix(incarnation)

        def read() -> list[StateRow | None]:
            values = self._rocks.get([prefix + key for key in keys], state=True)
            return [_row(incarnation, key, value) for key, value in zip(keys, values, strict=True)]

        return await self._read(read)

    async def list_states(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """See :meth:`StateStore.list_states`."""
        prefix = layout.state_prefix(incarnation)
        last = layout.past(prefix) if end is None else prefix + end
        found = await self._read(lambda: self._rocks.keys(prefix + start, last, limit, state=True))
        return [key.removeprefix(prefix) for key in found]

    async def drop_journal(self, journal: str) -> None:
        """See :meth:`StateStore.drop_journal`."""

        def stage(batch: RowBatch) -> None:
            self.heads.drop(journal, batch)
            if journal in self.heads.cleared:
                self._thread.call_later(Purge(self._rocks, self.heads, journal, None))

        await self._thread.call(stage)

    async def drop_incarnation(self, incarnation: IncarnationId) -> None:
        """See :meth:`StateStore.drop_incarnation`. It takes effect after all earlier ``write_states`` calls."""
        await self._thread.call_sliced(DropIncarnation(incarnation))

    async def close(self) -> None:
        """See :meth:`StateStore.close`. Closes the whole database, including its coordinator."""
        await asyncio.to_thread(self._close)
        await asyncio.to_thread(self._readers.shutdown)

    async def _read(self, read: Callable[[], Result]) -> Result:
        try:
            future = asyncio.get_running_loop().run_in_executor(self._readers, read)
        except RuntimeError as error:
            raise StoreUnavailableError("the store is closed") from error
        return await future

    def _reload(self) -> None:
        self.heads.load()
        if lost := self.heads.lost():
            reason = f"the disk has lost {lost}, which this process depends on: it ends. Start it again"
            self._end_process(reason)
            raise StoreUnavailableError(reason)
        self._purge_dropped()

    def _purge_dropped(self) -> None:
        for journal in self.heads.dropped_with_marks():
            self._thread.call_later(Purge(self._rocks, self.heads, journal, None))


def _name(journal: str, part: PartId) -> str:
    return f"part {part.name!r} of journal {journal} (sequencer {part.sequencer}, commit {part.commit})"


def _row(incarnation: IncarnationId, key: bytes, value: bytes | None) -> StateRow | None:
    if value is None:
        return None
    row = layout.intact_row(key, value) or layout.decode_row(incarnation, key, value)
    return row if row.blob else None
