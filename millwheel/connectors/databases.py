"""A sink into a table of any database with a driver of Python's DB-API 2.0, exactly once by transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID
from weakref import finalize

import msgspec

from millwheel.connectors.drivers import (
    DatabaseError,
    is_of_record,
    mark_of,
    named_parameters,
    names_parameters,
    stored_fields,
)
from millwheel.connectors.progress import is_over, without_batch
from millwheel.connectors.sink import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.threads import CallThread
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import did_you_mean

__all__ = ["SEARCH_SECONDS", "DatabaseError", "database"]

T = TypeVar("T")
_KEPT: Final = (bytes, bytearray, date, datetime, time, timedelta, Decimal, UUID)
"""What a driver gets as it is."""

Parameters = Sequence[Any] | Mapping[str, Any]

_PROGRESS: Final = "millwheel_progress"
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {_PROGRESS} (sink VARCHAR(200) NOT NULL, shard INTEGER NOT NULL, "
    "run BIGINT NOT NULL, batch BIGINT NOT NULL, id VARCHAR(32) NOT NULL, PRIMARY KEY (sink, shard))"
)
SEARCH_SECONDS: Final = 20.0
"""How long a refused record is searched for. A write has a minute, and this comes behind the batch itself."""
_SHOWN: Final = 300
"""The most characters of a refused record in an error."""


def database(
    connect: Callable[[], Any], statement: str, parameters: Callable[[T], Parameters] | None = None
) -> Sink[T]:
    """A sink that runs ``statement`` for each record. All records of a batch take effect in one transaction.

    The transaction also stores the id of the batch, in the table ``millwheel_progress``, which the sink makes. So each
    record takes effect exactly once, for any statement, and a former process can write no more.

    For example, results that replace each other, in SQLite::

        insert = "INSERT OR REPLACE INTO totals (item, cents) VALUES (:item, :cents)"
        totals.to("totals-table", connectors.database(partial(sqlite3.connect, "shop.db"), insert))

    Args:
        connect: Opens a connection, which has transactions: no autocommit. The worker calls it, so its driver is
            installed there, and it finds the password there: in the environment or in a file, and not in the program.
        statement: An INSERT, UPDATE or DELETE, with parameters in the driver's style.
        parameters: The parameters of a record. By default, its fields by name if the statement names parameters
            (``:item``, ``%(item)s``), and in their order if not. A tuple has its items, and any other value is one
            parameter.
    """
    return _Database(connect, statement, parameters)


@dataclass(frozen=True, slots=True)
class _Database(Sink[T], Generic[T]):
    connect: Callable[[], Any]
    statement: str
    parameters: Callable[[T], Parameters] | None

    def _problem(self, record_type: Any) -> str:
        """A statement that names what the record has not would fail at each batch."""
        fields = None if self.parameters is not None else stored_fields(record_type)
        wrong = [name for name in named_parameters(self.statement) if fields is not None and name not in fields]
        if fields is None or not wrong:
            return ""
        hint = did_you_mean(wrong[0], fields)
        return (
            f"the statement names {wrong[0]!r}{hint}, and a record has {', '.join(fields)}: {self.statement:.{_SHOWN}}"
        )

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        writer = _Writer(self, place)
        try:
            await writer.thread.call(writer.begin)
        except BaseException:
            with suppress(Exception):
                await writer.close()
            raise
        return writer


class _Writer(SinkWriter[T]):
    """Writes the batches of a shard by one connection, on a thread of its own.

    *Invariant (G1): the progress in the database is the newest batch whose records are there.* Each transaction raises
    it from the batch before, by their ids, or changes nothing. Who may break it: two processes that write the same
    shard. The row of the shard is locked by the first of them. The second finds another id, and writes nothing. Or a
    driver that commits each statement by itself: it is refused.
    """

    def __init__(self, sink: _Database[T], place: SinkShard) -> None:
        self._sink = sink
        self._place = place
        self.thread = CallThread("millwheel-database")
        self._opened: list[Any] = []
        """The connection. A writer that is never closed, as in a test, closes it at its own end."""
        finalize(self, _disconnect, self._opened).atexit = False
        self._mark = ""
        self._named = False

    def begin(self) -> None:
        """Connect, and make the row of the shard if there is none."""
        self._opened.append(self._sink.connect())
        self._mark = mark_of(self._connection)
        self._named = names_parameters(self._sink.statement, self._mark)
        self._see_to_table()
        self._refuse_autocommit()
        if self._progress(self._place.shard) is None:
            self._insert(self._place.shard)
        self._connection.commit()

    @property
    def _connection(self) -> Any:
        return self._opened[0]

    def _see_to_table(self) -> None:
        """Make the table of the progress if there is none.

        It is looked for first, because a role that may write to it need not have the right to make one. And of shards
        that make it at one time, PostgreSQL fails all but one.
        """
        try:
            self._look_into_table()
        except Exception:
            self._connection.rollback()
            try:
                self._run(_CREATE)
            except Exception as error:
                self._connection.rollback()
                try:
                    self._look_into_table()
                except Exception:
                    raise error from None
        self._connection.commit()

    def _look_into_table(self) -> None:
        self._progress(self._place.shard)

    def _refuse_autocommit(self) -> None:
        """Write a row, take it back, and look whether it is gone."""
        probe = -1 - self._place.shard
        self._delete(probe)  # of a process that died here
        self._insert(probe)
        self._connection.rollback()
        if self._progress(probe) is not None:
            self._delete(probe)
            raise DatabaseError(
                f"a rollback takes nothing back in the table {_PROGRESS}, so a batch could be written in part: connect "
                "without autocommit, to a database whose tables have transactions"
            )
        self._connection.commit()

    def _insert(self, shard: int) -> None:
        self._run(f"INSERT INTO {_PROGRESS} (sink, shard, run, batch, id) VALUES (?, ?, 0, 0, '')", self._name, shard)

    def _delete(self, shard: int) -> None:
        self._run(f"DELETE FROM {_PROGRESS} WHERE sink = ? AND shard = ?", self._name, shard)
        self._connection.commit()

    async def write(self, batch: SinkBatch[T]) -> None:
        await self.thread.call(lambda: self._write(batch))

    def _write(self, batch: SinkBatch[T]) -> None:
        try:
            if self._moved_to(batch):
                cursor = self._connection.cursor()
                cursor.executemany(self._sink.statement, [self._parameters(value) for value, _ in batch.records])
                cursor.close()
            self._connection.commit()
        except BaseException as error:
            with suppress(Exception):  # the error before says more
                self._connection.rollback()
            if is_of_record(error) and (refused := self._refused(batch)) is not None:
                raise refused from error
            raise

    def _refused(self, batch: SinkBatch[T]) -> DatabaseError | None:
        """Which record the database refuses. The records run again, one by one, and all of them are taken back.

        None: none does now, or it was not found in time. What the database checks only at the commit belongs to no
        record.
        """
        end = monotonic() + SEARCH_SECONDS
        try:
            with closing(self._connection.cursor()) as cursor:
                for number, (value, _) in enumerate(batch.records, 1):
                    if monotonic() >= end:
                        return None
                    try:
                        cursor.execute(self._sink.statement, self._parameters(value))
                    except Exception as error:
                        if not is_of_record(error):
                            return None
                        which = f"record {number} of {len(batch.records)} in batch {batch.number} of {self._name}"
                        return DatabaseError(
                            f"the database refuses {which}, shard {self._place.shard}: {error_message(error)}. It is "
                            f"{value!r:.{_SHOWN}}. Nothing of this batch was written: let the table take the record, "
                            "or leave it out by a filter in an update"
                        )
        finally:
            with suppress(Exception):
                self._connection.rollback()
        return None

    def _moved_to(self, batch: SinkBatch[T]) -> bool:
        """Raise the progress to the batch. False: it is there already."""
        shard, run = self._place.shard, self._place.run
        # A later run begins again. An earlier one that wakes up must not replace it.
        former, *of_former = ("run = ? AND id = ?", run, batch.after) if batch.after else ("run < ?", run)
        moved = self._run(
            f"UPDATE {_PROGRESS} SET run = ?, batch = ?, id = ? WHERE sink = ? AND shard = ? AND {former}",
            *(run, batch.number, batch.id, self._name, shard, *of_former),
        )
        if moved == 1:
            return True
        found = self._progress(shard)
        if found is not None and (found.run, found.id) == (run, batch.id):
            return False
        raise DatabaseError(self._apart(batch, found or _Progress(0, 0, "")))

    def _apart(self, batch: SinkBatch[T], found: _Progress) -> str:
        """What to do where the database stands elsewhere than the topology."""
        shard, former = self._place.shard, without_batch(self._place, batch)
        go_on = (
            f"UPDATE {_PROGRESS} SET run = {former.run}, batch = {former.batch}, id = '{former.id}' "
            f"WHERE sink = '{self._name}' AND shard = {shard} AND run = {found.run} AND id = '{found.id}'"
        )  # with what was found, so that it changes nothing if it is run twice
        if found.run > self._place.run:
            return is_over(self._place, go_on)
        here = f"the table {_PROGRESS} has batch {found.batch} of {self._name}, shard {shard}"
        which = " after another one of that number" if found.batch == batch.number - 1 else ""
        return (
            f"{here}, and batch {batch.number} comes next{which}: the topology or the database was set back to an "
            "earlier time, and the other one was not. Set that back, too, or write to a sink of another name. Or go "
            f"on, and what is twice or missing in the table stays so: {go_on}"
        )

    def _progress(self, shard: int) -> _Progress | None:
        cursor = self._connection.cursor()
        select = f"SELECT run, batch, id FROM {_PROGRESS} WHERE sink = ? AND shard = ?"
        cursor.execute(self._text(select), (self._name, shard))
        row = cursor.fetchone()
        cursor.close()
        return None if row is None else _Progress(*row)

    @property
    def _name(self) -> str:
        return self._place.sink

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
        if isinstance(fields, dict):
            return fields if self._named else tuple(fields.values())
        return tuple(fields) if isinstance(value, tuple) else (value,)

    async def close(self) -> None:
        await self.thread.end(partial(_disconnect, self._opened))


class _Progress(NamedTuple):
    """A row of the table."""

    run: int
    batch: int
    id: str


def _disconnect(opened: list[Any]) -> None:
    with suppress(Exception):  # it may be of another thread
        while opened:
            opened.pop().close()
