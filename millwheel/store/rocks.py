"""One RocksDB: opened with options of ours, shared by threads, and opened anew after a failed write.

RocksDB refuses every write after one has failed (a full disk, say) until it is opened again; that is
done here as soon as the directory takes writes again. What a failed write left on disk is then
known, and whoever caches stored values loads them anew (see :meth:`Rocks.recover`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

__all__ = ["Batch", "Rocks"]

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
    """Options to open with; ``cut``: the log ends before the first damage to it."""
    options = _family_options(cache, compress=False)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    # A torn record at the log's very end is what a crash leaves; damage before it must not pass silently.
    mode = DBRecoveryMode.point_in_time() if cut else DBRecoveryMode.tolerate_corrupted_tail_records()
    options.set_wal_recovery_mode(mode)
    options.set_max_total_wal_size(256 * _MIB)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(_MIB)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * _MIB)
    options.set_stats_dump_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    # Journals are written, read never or once, and deleted: do not let their tombstones lie about.
    options.add_compact_on_deletion_collector_factory(8192, 4096, 0.5)
    return options


class Batch:
    """What one write applies, all of it or nothing."""

    __slots__ = ("_raw", "_rocks", "delete", "put")

    def __init__(self, rocks: Rocks) -> None:
        self._rocks = rocks
        self._raw = WriteBatch(raw_mode=True)
        self.put = self._raw.put
        self.delete = self._raw.delete

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete the keys of the default family from ``start`` to below ``end``."""
        self._raw.delete_range(start, end)

    def delete_state_range(self, start: bytes, end: bytes) -> None:
        """The same for state rows."""
        self._raw.delete_range(start, end, self._rocks.state_family)

    @property
    def raw(self) -> WriteBatch:
        """For :class:`Rocks`, and for loops where a call per row counts."""
        return self._raw

    def __bool__(self) -> bool:
        return not self._raw.is_empty()


class Rocks:
    """The database of a directory. Writes, :meth:`recover` and :meth:`close` belong to one thread; reads to any."""

    def __init__(self, directory: DatabaseDirectory) -> None:
        self._directory = directory
        self._cache = Cache(64 * _MIB)
        self._condition = threading.Condition()
        self._readers = 0
        self._closing = False
        self._failure: str | None = None
        self.unsynced = True
        """Whether something may have been written since the last sync. It belongs to the thread that writes."""
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

    # Writing: one thread.

    @property
    def state_family(self) -> ColumnFamily:
        """The handle of the state rows' family. Not to be kept: it would keep the database from closing."""
        if self._family is None:
            raise self._unavailable()
        return self._family

    def write(self, batch: Batch) -> None:
        """Apply ``batch``: it survives this process from now on, and the machine from the next :meth:`sync` on."""
        self.unsynced = True
        self._guarded(lambda database: database.write(batch.raw))

    def sync(self) -> None:
        """Make all earlier writes survive a loss of power. Other threads run meanwhile (``write`` lets none run)."""
        self._guarded(self._sync)
        self.unsynced = False

    def _sync(self, database: Rdict) -> None:
        database.flush_wal(True)
        # No other thread writes, so this is what the sync has reached. A note that fails only leaves an older one.
        with suppress(OSError):
            self._synced.note(database.latest_sequence_number())

    def recover(self) -> bool:
        """Open anew after a failed write, if that is possible now; whether that was done.

        StoreUnavailableError while the condition lasts. After True everything cached is to be loaded again.
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
        """Close for good; reads fail from now on."""
        self._shut()
        self._synced.close()

    # Reading: any thread.

    def get(self, keys: Sequence[bytes], *, state: bool = False) -> list[bytes | None]:
        """The values of ``keys``, in order; None where there is none. Other threads run meanwhile."""
        with self._reading() as (database, states):
            # The batch form releases the interpreter lock, the single form does not.
            return cast("list[bytes | None]", (states if state else database).get(list(keys)))

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, state: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Up to ``limit`` keys and values from ``start`` to below ``end``, in key order."""
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

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        """The keys from ``start`` to below ``end`` in the default family."""
        with self._reading() as (database, _):
            return [cast("bytes", key) for key in database.keys(from_key=start, read_opt=_below(end))]

    # Within.

    @contextmanager
    def _reading(self) -> Iterator[tuple[Rdict, Rdict]]:
        """Keeps the database from being closed underneath a read."""
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
        """Run a write; turn its failure into ours and remember it, so that nothing is written before recovery.

        The error is raised outside the handler: a traceback must not keep handles of the database alive.
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
        """Open the database; why that failed, or None.

        The error is not raised on: a traceback must not keep handles of the database alive.
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
                # After a failed write closing repeats that failure; what was acknowledged is in the log.
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
