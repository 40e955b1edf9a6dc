"""The embedded database: one directory with one RocksDB, for the embedded store and the embedded coordinator."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from millwheel.embedded.coordinator import EmbeddedCoordinator
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.embedded import EmbeddedStore
from millwheel.store.rocks import Rocks
from millwheel.store.writer import StoreThread

__all__ = ["EmbeddedDatabase"]


class EmbeddedDatabase:
    """The database of ``millwheel server start-dev --db PATH``. One process at a time opens it.

    ``store`` and ``coordinator`` share a thread and a log. So the queued writes of both go to disk with one sync::

        async with await EmbeddedDatabase.open(path) as database:
            await database.store.create_journal("window-counter.1.j1")
    """

    def __init__(self, directory: DatabaseDirectory, rocks: Rocks, thread: StoreThread) -> None:
        """Use :meth:`open`."""
        self._directory = directory
        self.rocks = rocks
        self.thread = thread
        self._closing = threading.Lock()
        self._closed = False
        self.store = EmbeddedStore(rocks, thread, self._shut)
        self.coordinator = EmbeddedCoordinator(rocks, thread)

    @classmethod
    async def open(cls, path: Path | str) -> Self:
        """Open the database at ``path``, and create it if there is none.

        Raises:
            StoreError: if another process has it open, if it is damaged or has another format, or if ``path`` holds
                other files. In the last case nothing is changed. The message says what to do.
            StoreUnavailableError: if the disk is full.
        """
        database = await asyncio.to_thread(cls._open, Path(path))
        try:
            await database.coordinator.start()
        except BaseException:
            await database.close()
            raise
        return database

    @classmethod
    def _open(cls, path: Path) -> Self:
        directory = DatabaseDirectory(path)
        try:
            rocks = Rocks(directory)
        except BaseException:
            directory.release()
            raise
        thread = StoreThread(rocks)
        try:
            return cls(directory, rocks, thread)
        except BaseException:
            thread.close()
            rocks.close()
            directory.release()
            raise

    async def close(self) -> None:
        """End watches, fail outstanding calls, and release the directory's lock. Idempotent."""
        await self.coordinator.close()
        await self.store.close()

    def _shut(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self.thread.close()
            self.rocks.close()
            self._directory.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
