"""A sink into a table of any database with a driver of Python's DB-API 2.0, exactly once by transactions."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.errors import MillwheelError

__all__ = ["DatabaseError", "database"]

T = TypeVar("T")
_KEPT: Final = (bytes, bytearray, date, datetime, time, timedelta, Decimal, UUID)
"""What a driver gets as it is."""

Parameters = Sequence[Any] | Mapping[str, Any]

_PROGRESS: Final = "millwheel_progress"
_MARKS: Final = {"qmark": "?", "format": "%s", "pyformat": "%s"}
"""By the driver's style: the mark of a parameter in a statement."""


class DatabaseError(MillwheelError):
    """The database does not have the batches that were written to it, or a driver that cannot be used."""


def database(
    connect: Callable[[], Any], statement: str, parameters: Callable[[T], Parameters] | None = None
) -> Sink[T]:
    """A sink that runs ``statement`` for each record. All records of a batch take effect in one transaction.

    The transaction also stores the number of the batch, in the table ``millwheel_progress``, which the sink makes. So
    each record takes effect exactly once, whatever the statement does, and a former process can write no more.

    For example, results that replace each other, in SQLite::

        insert = "INSERT OR REPLACE INTO totals (item, cents) VALUES (:item, :cents)"
        totals.to("totals-table", connectors.database(partial(sqlite3.connect, "shop.db"), insert))

    Args:
        connect: Opens a connection. The worker calls it, so its driver is installed there, and it finds the password
            there: in the environment or in a file, and not in the program.
        statement: An INSERT, UPDATE or DELETE, with parameters in the driver's style.
        parameters: The parameters of a record. By default, its fields by name if the statement names parameters
            (``:item``, ``%(item)s``), and in their order if not.
    """
    return _Database(connect, statement, parameters)


@dataclass(frozen=True, slots=True)
class _Database(Sink[T], Generic[T]):
    connect: Callable[[], Any]
    statement: str
    parameters: Callable[[T], Parameters] | None

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        writer = _Writer(self, place)
        try:
            await writer.on_thread(writer.begin)
        except BaseException:
            await writer.close()
            raise
        return writer


class _Writer(SinkWriter[T]):
    """Writes the batches of a shard by one connection, on a thread of its own.

    *Invariant (G1): the progress in the database is the newest batch whose records are there.* Each transaction raises
    it by one, from the number before, or changes nothing. Who may break it: two processes that write the same shard.
    The row of the shard is locked by the first of them. The second finds another number, and writes nothing.
    """

    def __init__(self, sink: _Database[T], place: SinkShard) -> None:
        self._sink = sink
        self._place = place
        self._thread = ThreadPoolExecutor(1, "millwheel-database")
        self._connection: Any = None
        self._mark = ""

    async def on_thread(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def begin(self) -> None:
        """Connect, and make the row of the shard if there is none of this run."""
        self._connection = self._sink.connect()
        self._mark = _mark_of(self._connection)
        self._run(
            f"CREATE TABLE IF NOT EXISTS {_PROGRESS} (sink VARCHAR(200) NOT NULL, shard INTEGER NOT NULL, "
            "run BIGINT NOT NULL, batch BIGINT NOT NULL, PRIMARY KEY (sink, shard))"
        )
        self._connection.commit()
        sink, shard, run = self._key
        # A later run counts from 1 again. An earlier one that wakes up must not replace it.
        self._run(
            f"UPDATE {_PROGRESS} SET run = ?, batch = 0 WHERE sink = ? AND shard = ? AND run < ?", run, sink, shard, run
        )
        if self._progress() is None:
            self._run(f"INSERT INTO {_PROGRESS} (sink, shard, run, batch) VALUES (?, ?, ?, 0)", sink, shard, run)
        self._connection.commit()

    async def write(self, batch: SinkBatch[T]) -> None:
        await self.on_thread(lambda: self._write(batch))

    def _write(self, batch: SinkBatch[T]) -> None:
        try:
            if self._moved_to(batch.number):
                cursor = self._connection.cursor()
                cursor.executemany(self._sink.statement, [self._parameters(value) for value, _ in batch.records])
                cursor.close()
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise

    def _moved_to(self, number: int) -> bool:
        """Raise the progress to ``number``. False: it is there already."""
        sink, shard, run = self._key
        moved = self._run(
            f"UPDATE {_PROGRESS} SET batch = ? WHERE sink = ? AND shard = ? AND run = ? AND batch = ?",
            *(number, sink, shard, run, number - 1),
        )
        if moved == 1:
            return True
        found = self._progress()
        if found is not None and found[0] == run and found[1] >= number:
            return False
        if found is not None and found[0] > run:
            raise DatabaseError(f"a later topology of the same name writes {sink}, shard {shard}: this one is over")
        raise DatabaseError(
            f"the table {_PROGRESS} has batch {0 if found is None else found[1]} of {sink}, shard {shard}, and batch "
            f"{number} comes next: the database was set back to an earlier time. Set it back with the topology, or "
            "write to a sink of another name"
        )

    def _progress(self) -> tuple[int, int] | None:
        sink, shard, _ = self._key
        cursor = self._connection.cursor()
        cursor.execute(self._text(f"SELECT run, batch FROM {_PROGRESS} WHERE sink = ? AND shard = ?"), (sink, shard))
        row = cursor.fetchone()
        cursor.close()
        return None if row is None else (row[0], row[1])

    @property
    def _key(self) -> tuple[str, int, int]:
        return self._place.sink, self._place.shard, self._place.run

    def _run(self, statement: str, *parameters: Any) -> int:
        cursor = self._connection.cursor()
        cursor.execute(self._text(statement), parameters)
        count: int = cursor.rowcount
        cursor.close()
        return count

    def _text(self, statement: str) -> str:
        return statement.replace("?", self._mark)

    def _parameters(self, value: T) -> Parameters:
        if self._sink.parameters is not None:
            return self._sink.parameters(value)
        fields = msgspec.to_builtins(value, builtin_types=_KEPT)
        named = isinstance(fields, dict) and (":" in self._sink.statement or "%(" in self._sink.statement)
        return fields if named else tuple(fields.values()) if isinstance(fields, dict) else (value,)

    async def close(self) -> None:
        try:
            if self._connection is not None:
                await self.on_thread(self._connection.close)
        finally:
            self._thread.shutdown(wait=False)


def _mark_of(connection: Any) -> str:
    name = type(connection).__module__.partition(".")[0]
    style = getattr(sys.modules.get(name), "paramstyle", "qmark")
    if style not in _MARKS:
        raise DatabaseError(f"the driver {name!r} has parameters in the style {style!r}: {', '.join(_MARKS)} are known")
    return _MARKS[style]
