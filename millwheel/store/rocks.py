"""One RocksDB database: opened with MillWheel's options, shared by threads, and reopened after a failed write.

After a failed write (on a full disk, for example) RocksDB refuses every write until it is reopened. This module reopens
it as soon as the directory accepts writes again. Only then is it known what the failed write left on disk. So every
cache of stored values must be reloaded (see :meth:`Rocks.recover`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Final, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ColumnFamily,
    DbClosedError,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from millwheel.store.contract import StoreError, StoreUnavailableError
from millwheel.store.directory import DatabaseDirectory
from millwheel.store.power_loss import SyncedMark, keeps_what_was_synced

__all__ = ["Rocks", "RowBatch"]

log = logging.getLogger(__name__)

_STATE: Final = "state"
_SYNCED: Final = "MILLWHEEL.synced"
_TRIAL: Final = "recovery-trial"
_MIB: Final = 1 << 20


def _family_options(cache: Cache, *, compress: bool) -> Options:
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(32 * _MIB)
    options.set_max_write_buffer_number(4)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_compression_type(DBCompressionType.lz4() if compress else DBCompressionType.none())
    return options


def _database_options(cache: Cache, *, create: bool, cut: bool = False) -> Options:
    """The options to open the database with. ``cut``: end the log before its first damaged record."""
    options = _family_options(cache, compress=False)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    # A crash leaves a torn record at the very end of the log. Damage before the end must be reported.
    mode = DBRecoveryMode.point_in_time() if cut else DBRecoveryMode.tolerate_corrupted_tail_records()
    options.set_wal_recovery_mode(mode)
    options.set_max_total_wal_size(256 * _MIB)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(_MIB)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    # Journal entries are written, read at most once and deleted. Compaction removes their tombstones early.
    options.add_compact_on_deletion_collector_factory(8192, 4096, 0.5)
    return options


class RowBatch:
    """The changes of one atomic write."""

    __slots__ = ("_raw", "_rocks", "delete", "put")

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._raw = WriteBatch(raw_mode=True)
        self.put = self._raw.put
        self.delete = self._raw.delete

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete the default family's keys from ``start`` (included) to ``end`` (excluded)."""
        self._raw.delete_range(start, end)

    def delete_state_range(self, start: bytes, end: bytes) -> None:
        """Delete state rows with keys from ``start`` (included) to ``end`` (excluded)."""
        self._raw.delete_range(start, end, self._rocks.state_family)

    @property
    def raw(self) -> WriteBatch:
        """The batch of the RocksDB library. For :class:`Rocks`, and for loops where a call per row is too slow."""
        return self._raw

    @property
    def size(self) -> int:
        """The bytes of the changes."""
        return self._raw.size_in_bytes()

    def __bool__(self) -> bool:
        return not self._raw.is_empty()


class Rocks:
    """The database of a directory. One thread calls writes, :meth:`recover` and :meth:`close`; any thread reads."""

    def __init__(self, directory: DatabaseDirectory) -> None:
        self._directory = directory
        self._cache = Cache(64 * _MIB)
        self._condition = threading.Condition()
        self._readers = 0
        self._closing = False
        self._failure: str | None = None
        self.unsynced = True
        """Whether there may be writes since the last sync. Only the writing thread uses this attribute."""
        self._database: Rdict | None = None
        self._states: Rdict | None = None
        self._family: ColumnFamily | None = None
        self._synced = SyncedMark(directory.path / _SYNCED)
        self._open()
        try:
            directory.mark_ready()
        except BaseException:
            self._shut()
            raise

    # Writing: one thread only.

    @property
    def state_family(self) -> ColumnFamily:
        """The handle of the state rows' column family. Callers must not keep it: it stops the database from closing."""
        if self._family is None:
            raise self._unavailable()
        return self._family

    def write(self, batch: RowBatch) -> None:
        """Apply ``batch``. It survives the end of the process; after :meth:`sync` also a loss of power."""
        self.unsynced = True
        self._guarded(lambda database: database.write(batch.raw))

    def sync(self) -> None:
        """Make all earlier writes survive a loss of power. This releases the interpreter lock; ``write`` does not."""
        self._guarded(self._sync)
        self.unsynced = False

    def _sync(self, database: Rdict) -> None:
        database.flush_wal(True)
        # Only this thread writes, so the sync covers this number. If the note fails, an older note stays.
        with suppress(OSError):
            self._synced.note(database.latest_sequence_number())

    def recover(self) -> bool:
        """Reopen the database after a failed write, if the disk accepts writes again.

        Returns:
            Whether the database was reopened. If so, the caller must reload everything that it has cached.

        Raises:
            StoreUnavailableError: while the disk does not accept writes.
        """
        if self._failure is None:
            return False
        try:
            self._directory.check_space()
        except OSError as error:
            self._failure = str(error)
            raise self._unavailable() from None
        self._shut()
        self._open()
        self._failure = None
        self.unsynced = True
        return True

    def close(self) -> None:
        """Close the database for good. Later reads fail."""
        self._shut()
        self._synced.close()

    # Reading: any thread.

    def get(self, keys: Sequence[bytes], *, state: bool = False) -> list[bytes | None]:
        """Return the values of ``keys`` in order, with None for a missing key. Releases the interpreter lock."""
        with self._reading() as (database, states):
            # The library's batch form releases the interpreter lock; its form for a single key does not.
            return cast("list[bytes | None]", (states if state else database).get(list(keys)))

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, state: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return up to ``limit`` pairs of key and value from ``start`` to below ``end``, in key order."""
        if end <= start:
            return []
        with self._reading() as (database, states):
            found: list[tuple[bytes, bytes]] = []
            items = (states if state else database).items(from_key=start, read_opt=_below(end))
            for key, value in items:
                found.append((cast("bytes", key), value))
                if limit is not None and len(found) >= limit:
                    break
            return found

    def keys(self, start: bytes, end: bytes, limit: int | None = None, *, state: bool = False) -> list[bytes]:
        """Return up to ``limit`` keys from ``start`` to below ``end``, in order."""
        if end <= start:
            return []
        with self._reading() as (database, states):
            found = (states if state else database).keys(from_key=start, read_opt=_below(end))
            return [cast("bytes", key) for key in islice(found, limit)]

    # Helpers.

    @contextmanager
    def _reading(self) -> Iterator[tuple[Rdict, Rdict]]:
        """Keep the database open while a read runs."""
        with self._condition:
            if self._closing or self._database is None or self._states is None:
                raise self._unavailable()
            self._readers += 1
            database, states = self._database, self._states
        failure: str
        try:
            yield database, states
            return
        except DbClosedError:
            failure = "the database was closed"
        except StoreError:
            raise
        except Exception as error:
            if type(error) is not Exception:
                raise
            failure = str(error)
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()
        raise _read_failure(failure)

    def _guarded(self, action: Callable[[Rdict], None]) -> None:
        """Run a write. A failure is remembered, so that nothing is written before :meth:`recover`.

        StoreUnavailableError is raised outside the handler: a traceback would keep handles of the database alive.
        """
        if self._failure is not None or self._database is None:
            raise self._unavailable()
        try:
            action(self._database)
        except Exception as error:
            if type(error) is not Exception:
                raise
            self._failure = str(error)
        if self._failure is not None:
            raise self._unavailable()

    def _unavailable(self) -> StoreUnavailableError:
        path = self._directory.path
        if self._failure is None:
            return StoreUnavailableError(f"the database {path} is closed")
        return StoreUnavailableError(
            f"the database {path} takes no writes: {self._failure}. Free space there or repair the disk; "
            "the store goes on by itself as soon as writing succeeds"
        )

    def _open(self) -> None:
        failure = self._try_open(cut=False)
        if failure is not None and failure.startswith("Corruption"):
            directory = self._directory
            if keeps_what_was_synced(directory.data, directory.path / _TRIAL, self._synced, self._open_cut):
                log.warning("the log of %s ends in a write that was never synced: it is cut off", directory.path)
                failure = self._try_open(cut=True)
        if failure is not None:
            raise self._open_failure(failure)

    def _try_open(self, *, cut: bool) -> str | None:
        """Open the database. Return None, or why that failed.

        The error is not raised: a traceback would keep handles of the database alive.
        """
        try:
            database = self._open_at(self._directory.data, cut=cut)
        except Exception as error:
            if type(error) is not Exception:
                raise
            return str(error)
        with self._condition:
            self._database = database
            self._states = database.get_column_family(_STATE)
            self._family = database.get_column_family_handle(_STATE)
            self._closing = False
        return None

    def _open_at(self, path: Path, *, cut: bool) -> Rdict:
        options = _database_options(self._cache, create=self._directory.is_new, cut=cut)
        return Rdict(str(path), options=options, column_families={_STATE: _family_options(self._cache, compress=True)})

    def _open_cut(self, path: Path) -> Rdict:
        return self._open_at(path, cut=True)

    def _open_failure(self, failure: str) -> StoreError:
        path = self._directory.path
        if failure.startswith("IO error"):
            return StoreUnavailableError(
                f"the database {path} cannot be opened: {failure}. Free space there or repair the disk, then try again"
            )
        return StoreError(f"the database {path} is damaged: {failure}. Nothing was changed: restore it from a snapshot")

    def _shut(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.wait_for(lambda: self._readers == 0)
            database, states = self._database, self._states
            self._database = self._states = self._family = None
        for handle in (states, database):
            if handle is None:
                continue
            try:
                handle.close()
            except Exception as error:
                # After a failed write, closing repeats the failure. Acknowledged writes are in the log.
                if type(error) is not Exception:
                    raise


def _below(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)
    return options


def _read_failure(failure: str) -> StoreError:
    if failure.startswith("Corruption"):
        return StoreError(f"the database is damaged: {failure}. Restore it from a snapshot")
    return StoreUnavailableError(f"the read failed: {failure}. Check the disk, then repeat it")
