"""One directory, one RocksDB: the embedded store and the embedded coordinator on it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from millwheel.coordination.embedded import EmbeddedCoordinator
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.embedded import EmbeddedStore
from millwheel.store.rocks import Rocks
from millwheel.store.writer import StoreThread

__all__ = ["EmbeddedDatabase"]


class EmbeddedDatabase:
    """What ``millwheel server start-dev --db PATH`` keeps everything in.

    One process owns it. ``store`` and ``coordinator`` share a thread and a log, so that what waits to be
    written by either goes to disk with one sync::

        async with await EmbeddedDatabase.open(path) as database:
            await database.store.create_journal("window-counter.1.j1")
    """

    def __init__(self, directory: DatabaseDirectory, rocks: Rocks, thread: StoreThread) -> None:
        """Use :meth:`open`."""
        self._directory = directory
        self._rocks = rocks
        self._thread = thread
        self._closing = threading.Lock()
        self._closed = False
        self.store = EmbeddedStore(rocks, thread, self._shut)
        self.coordinator = EmbeddedCoordinator(rocks, thread)

    @classmethod
    async def open(cls, path: Path | str) -> Self:
        """Open the database at ``path``, creating it where nothing is yet.

        StoreError, saying what to do, if another process holds it, if it is damaged, of another format,
        or something else altogether (then nothing is changed); StoreUnavailableError if the disk is full.
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
        """End watches, fail outstanding calls, and let another process in. Closing twice does no harm."""
        await self.coordinator.close()
        await self.store.close()

    def _shut(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._thread.close()
            self._rocks.close()
            self._directory.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
