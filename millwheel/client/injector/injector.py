"""The injector: sends records into the system from an asyncio program (section 5.2). It drives the injector's core.

    async with Injector("queries", process="reader-1", address="127.0.0.1:7433") as injector:
        await injector.send(Query("britney spears"), timestamp=now)
        await injector.advance(now - seconds(5))

The injector sends every record to every consumer of its stream until the consumer ACKs it. The process or its successor
may send a record again. :mod:`millwheel.client.injector.ids` defines when two records count as the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Any, Final

from millwheel.client.injector.encoding import GivenKeys
from millwheel.client.injector.errors import ForgottenIdsError, NotAckedError
from millwheel.client.injector.ids import BatchOf, IdScope, UserId, checked_position
from millwheel.client.injector.messages import WatermarkDeclared
from millwheel.client.injector.process import InjectorProcess
from millwheel.client.injector.small_tables import SmallTable
from millwheel.client.injector.tables import times_in
from millwheel.client.injector.unacked import SentRecords, unacked_ids
from millwheel.model.time import Timestamp
from millwheel.sdk.errors import MillwheelError, UsageError

__all__ = ["Injector"]

_RECORDS_IN_A_ROW: Final = 256
_ROWS_IN_A_ROW: Final = 8_000
"""They take two milliseconds in tables of a hundred, and are about one delivery."""
_ROWS_OF_A_CALL: Final = _ROWS_IN_A_ROW // _RECORDS_IN_A_ROW
"""A small table counts as so many rows at least: a call takes time, however few rows it has."""
_POLL_SECONDS: Final = 0.1
"""How often a call looks for its own records among the un-ACKed ones, while records before them have no ACK."""


class Injector(InjectorProcess):
    """One process of the injector of ``stream``. Use it with ``async with``, from one event loop.

    Unless an exception ends the ``async with`` block, its end waits for the ACKs of all records. The process then still
    holds the low watermark at its last value. Call :meth:`finish` if it never sends again, or :meth:`idle` for a pause.
    """

    _sends_left = _RECORDS_IN_A_ROW
    """How many more single records are sent before other tasks may run."""
    _rows_left = _ROWS_IN_A_ROW
    """How many more rows of small tables are sent before other tasks may run."""
    _unacked_ids_at = -_POLL_SECONDS
    """When ``_cached_unacked_ids`` was computed, by the event loop's clock."""
    _cached_unacked_ids: Mapping[IdScope, AbstractSet[Any]] = MappingProxyType({})

    async def send(
        self,
        value: Any,
        *,
        timestamp: Timestamp | int,
        id: UserId | None = None,  # shadows the builtin, because it is the usual word
        position: int | None = None,
        partition: str = "",
    ) -> None:
        """Send one record. Returns when this process has taken the record, which may need a wait for room.

        The record is lost if the process dies now. :meth:`flush` waits until all records are ACKed, and so durable.
        The arguments and errors are those of :meth:`send_many`, for one record.
        """
        self._session.check()
        if not self._intake.put(value, timestamp, id, position, partition):
            ids = None if id is None else (id,)
            positions = None if position is None else (position,)
            await self._admission.send((value,), (timestamp,), ids, positions, partition)
        self._sends_left -= 1
        if self._sends_left <= 0:
            self._sends_left = _RECORDS_IN_A_ROW
            await asyncio.sleep(0)

    def _drain(self) -> None:
        if self._intake.buffer.count:
            self._intake.drain()
        self._tables.intake.drain()

    async def send_many(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int],
        *,
        ids: Sequence[UserId] | None = None,
        positions: Sequence[int] | None = None,
        partition: str = "",
        batch: BatchOf | None = None,
        keys: GivenKeys | None = None,
        encoded: bool = False,
    ) -> None:
        """Send records, given as columns of equal length. Returns when all are accepted.

        Records are accepted in order, up to 1,000 at a time. If the call raises, :attr:`accepted` counts earlier ones.
        If an error begins with ``record 17:``, that is the index of the record which it refuses, and all records before
        it are accepted. All other errors are of the call. A time in a wrong unit is one: no record is accepted then.

        Args:
            values: The records.
            timestamps: Microseconds since the epoch.
            ids: The user's ids of the records, unique within the source, or within ``batch`` if that is given. Without
                ``ids`` and ``positions`` each record counts as new, even if it was sent before.
            positions: Positions of the records in ``partition``. They rise over all calls of the source's lifetime.
            partition: The partition of the source that ``positions`` belong to.
            batch: The batch of a query in which ``ids`` are unique.
            keys: The keys of the records, by consuming computation. By default the keys are extracted from the values.
                A computation with one key for all records, such as a sink with one shard, uses that one.
            encoded: Whether the values are already encoded.

        Raises:
            ValueEncodeError: A value is not of the stream's type.
            KeyExtractionError: A value has no key.
            TooLargeError: A value or a key is too large.
            UsageError: The columns do not fit together, or positions do not rise. An id or a given key is none. Or a
                time is probably not in microseconds.
            InjectorError: The injector has stopped; the error says why.
        """
        self._session.check()
        count = len(values)
        for what, column in (("timestamps", timestamps), ("ids", ids), ("positions", positions)):
            if column is not None and len(column) != count:
                raise UsageError(f"{count} values, but {len(column)} {what}")
        for name, given in keys.items() if isinstance(keys, Mapping) else [("every consumer", keys)]:
            if given is not None and len(given) != count:
                raise UsageError(f"{count} values, but {len(given)} keys for {name}")
        self._times.check(timestamps, "a record's timestamp", of_records=True)
        refused = _name_record if count > 1 else None
        await self._admission.send(
            values, timestamps, ids, positions, partition, batch, keys, encoded=encoded, refused=refused
        )

    async def send_table(
        self,
        table: Any,
        *,
        timestamp: str,
        position: int | None = None,
        partition: str = "",
        id_column: str | None = None,
        batch: BatchOf | None = None,
    ) -> None:
        """Send the rows of a table of Arrow. Returns when all are accepted. It needs the extra ``arrow``.

        The records have the table's columns as fields, without the column of timestamps. Columns of texts, bytes,
        numbers and truth values are sent as columns, which costs a fraction of :meth:`send_many`, if each consumer's
        key is one of the columns of texts or integers. A null is None. All else is encoded row by row. The effect is
        the same. The log says why a table goes by rows, once, and :attr:`by_rows` counts them. The index of a data
        frame of pandas is no column.

        Rows are accepted in order. If a row is refused, the error names it, and the rows before it are accepted. Times,
        names and types of columns are looked at before the first one is accepted.

        Example::

            await injector.send_table(pandas.read_parquet("bids.parquet"), timestamp="at", position=0, partition="bids")

        Args:
            table: A table or a record batch of pyarrow, a data frame of pandas or Polars, or what else has the Arrow
                PyCapsule interface.
            timestamp: The column of timestamps: of a type of timestamps, or integers of microseconds since the epoch.
            position: The position of the first row in ``partition``. The next rows have the next positions. To send
                rows again, open a new injector. Without it and ``id_column``, each record counts as new, even if it was
                sent before.
            partition: The partition of the source that positions belong to.
            id_column: The column of the user's ids: texts, bytes or integers. It stays a field of the records. The ids
                are unique within the source, or within ``batch`` if that is given.
            batch: The batch of a query in which the ids are unique.

        Raises:
            UsageError: It is no table, the column of timestamps or ids is missing or has nulls, an id is empty,
                positions do not rise, or the stream's format is not MessagePack.
            ValueEncodeError: A row is not of the stream's type, or a column has no valid values.
            KeyExtractionError: A row has no key.
            TooLargeError: A row or a key is too large.
            InjectorError: The injector has stopped; the error says why.
        """
        self._session.check()
        whole = self._tables.read(table, timestamp, id_column)
        self._times.check_range(times_in(whole), "a record's timestamp")
        rows = len(whole)
        if position is not None and rows:
            position = checked_position(position)
            checked_position(position + rows - 1)
        if isinstance(whole, SmallTable) and self._tables.intake.put(whole, position, partition, batch):
            self._rows_left -= max(rows, _ROWS_OF_A_CALL)
            if self._rows_left <= 0:
                self._rows_left = _ROWS_IN_A_ROW
                await asyncio.sleep(0)
            return
        await self._tables.send(whole, position, partition, id_column, batch)

    async def send_together(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int],
        *,
        ids: Sequence[UserId] | None = None,
        again: bool = True,
    ) -> SentRecords:
        """Send records, all of them or none. Returns when all are accepted; :meth:`until_acked` waits for their ACKs.

        This suits requests that are refused as a whole, and repeated as a whole. Calls may run side by side. Records of
        different calls have no order then.

        Example::

            sent = await injector.send_together([Query("cat videos")], [now], ids=["7f3a"])
            await injector.until_acked(sent)

        Args:
            values: The records. They wait until the window of un-ACKed records has room for them, or is half empty.
            timestamps: Microseconds since the epoch.
            ids: The user's ids of the records, unique within the source. Without ids each record counts as new. An
                un-ACKed record that comes again is not sent again: the call waits for the first copy.
            again: Whether a record may have been sent before, under its id and with the same timestamp. If the stream
                may have forgotten its id, the call is refused. False where the timestamp differs each time: then it
                says nothing about the id.

        Returns:
            The records, for :meth:`until_acked`.

        Raises:
            RefusedRecordError: A record is not of the stream's type, has no key, or is too large.
            ForgottenIdsError: A record is older than the low watermark by more than the stream's ``id_slack``.
            UsageError: The columns do not fit together, an id is empty, or a time is probably not in microseconds.
            InjectorError: The injector has stopped; the error says why.
        """
        self._session.check()
        if len(timestamps) != len(values) or (ids is not None and len(ids) != len(values)):
            raise UsageError(f"{len(values)} values, {len(timestamps)} timestamps and {len(ids or ())} ids")
        self._times.check(timestamps, "a record's timestamp", of_records=True)
        core = self._session.core
        if not values:
            return SentRecords(self._ids.scope((), None, "", None), frozenset(), core.accepted)

        def refuse_forgotten() -> None:
            """Invariant: no receiver has forgotten the id of an accepted record, if it ever had that.

            Receivers forget what the low watermark has passed by ``id_slack``. That watermark is not above this
            process's published one, which stays where it is until the record is ACKed, or does not pass it.
            """
            kept_from = core.publication.value - self._session.routing.id_slack
            if ids is not None and again and min(timestamps) < kept_from:
                index = next(at for at, timestamp in enumerate(timestamps) if timestamp < kept_from)
                raise ForgottenIdsError(index, timestamps[index], kept_from)

        return await self._admission.send_together(values, timestamps, ids, refuse_forgotten, self._unacked_ids)

    async def until_acked(self, sent: SentRecords) -> None:
        """Wait until every consumer has ACKed these records. Their effects are then durable.

        Unlike :meth:`flush`, it waits for no other records: one whose hook fails delays only its own call.

        Args:
            sent: What :meth:`send_together` returned.

        Raises:
            InjectorError: The injector has stopped.
        """
        core = self._session.core
        while not core.flushed(sent.end):
            try:
                async with asyncio.timeout(_POLL_SECONDS) as limit:
                    await self._session.until(lambda: core.flushed(sent.end))
            except TimeoutError:
                if not limit.expired():
                    raise
                if sent.ids.isdisjoint(self._unacked_ids().get(sent.scope, ())):
                    break
        if core.failed is not None:
            raise core.failed

    def _unacked_ids(self) -> Mapping[IdScope, AbstractSet[Any]]:
        """The ids of all un-ACKed records, at most some milliseconds old, because many calls ask for them."""
        now = asyncio.get_running_loop().time()
        if now >= self._unacked_ids_at + _POLL_SECONDS / 2:
            self._unacked_ids_at, self._cached_unacked_ids = now, unacked_ids(self._session.core)
        return self._cached_unacked_ids

    async def advance(self, watermark: Timestamp | int) -> None:
        """Promise that no later record has a timestamp below ``watermark``.

        A promise never falls: a lower value is ignored. The published watermark is the smaller of the promise and
        the oldest un-ACKed record (4.5).

        Args:
            watermark: Microseconds since the epoch.

        Raises:
            UsageError: ``watermark`` is probably not in microseconds.
            InjectorError: The injector has stopped.
        """
        self._session.check()
        self._session.check_publishes()
        if not isinstance(watermark, int):
            raise UsageError(f"the watermark is a whole number of microseconds, not {watermark!r}")
        if not self._times.first <= watermark <= self._times.last:
            self._times.check((watermark,), "the watermark")
        if self._session.asleep:
            await self._session.membership.wake()
        if not self._tables.intake.promise(watermark):
            self._drain()
            self._session.step(WatermarkDeclared(watermark))

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every consumer has ACKed every record sent so far. Their effects are then durable.

        Args:
            timeout: Seconds to wait at most. None waits without limit, and the log names the consumers without ACKs.

        Raises:
            NotAckedError: Not everything was ACKed in time. The error names the computation without ACKs, and why.
            InjectorError: The injector has stopped.
        """
        self._drain()
        target = self._session.core.accepted
        try:
            async with asyncio.timeout(timeout) as limit:
                await self._session.until(lambda: self._session.core.flushed(target))
            self._tables.look_at_workers()
        except TimeoutError as error:
            if not limit.expired():
                raise
            why = await self._monitor.explain()
            raise NotAckedError(self.stream, self.process, timeout or 0.0, why) from error


def _name_record(index: int, error: MillwheelError) -> None:
    """Add to the error of a record: which one of the call it is."""
    error.args = (f"record {index}: {error}",)
