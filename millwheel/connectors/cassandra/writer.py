"""The writer of a shard: one conditional update for each batch, and then its rows with the time that it got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeVar

from cassandra import InvalidRequest
from cassandra.query import BatchStatement, BatchType, BoundStatement

from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.connectors.cassandra.progress import TableProgress, next_progress
from millwheel.connectors.cassandra.rows import RowChange, changes_of, shown_record
from millwheel.connectors.cassandra.settings import read_settings
from millwheel.connectors.cassandra.spec import TableSpec
from millwheel.connectors.cassandra.tables import PreparedTable, prepare_table
from millwheel.connectors.sink import SinkBatch, SinkShard, SinkWriter
from millwheel.store.cassandra.failures import is_unknown
from millwheel.store.cassandra.opening import open_session
from millwheel.store.cassandra.session import CassandraSession
from millwheel.store.contract import StoreError, StoreUnavailableError

__all__ = ["TableWriter", "open_writer"]

T = TypeVar("T")
R = TypeVar("R")

_CHUNK_ROWS: Final = 100
"""The most rows of a partition that are sent together."""
_SENDERS: Final = 16
"""How many chunks are under way at once."""


async def open_writer(spec: TableSpec[T], place: SinkShard) -> TableWriter[T]:
    """Connect, check the table, and read the progress of the shard.

    Raises:
        CassandraError: Cassandra cannot be reached, or the table does not take the rows.
    """
    try:
        access = await asyncio.to_thread(read_settings, spec.settings, spec.keyspace)
        session, table = await open_session(access.cluster, partial(prepare_table, spec, access))
    except StoreError as error:
        raise CassandraError(f"{place.sink} cannot be written, by the settings in {spec.settings}: {error}") from error
    writer = TableWriter(spec, place, session, table)
    try:
        await writer.read_progress()
    except BaseException:
        await writer.close()
        raise
    return writer


class TableWriter(SinkWriter[T]):
    """Writes the batches of a shard.

    *Invariant (G1, G3): rows of a batch are sent only with the write time that the progress has got for it.* The update
    of the progress is conditional. So of two writers one gets the time, and the other one finds another progress. The
    one that is shut out may still send rows, with a smaller time than all that follows. They change nothing: what they
    have was written by the successor, or was replaced since. *Who may break it:* a table that forgets deletions sooner
    than writes arrive (``gc_grace_seconds``), so :class:`TableColumns` refuses it.
    """

    def __init__(self, spec: TableSpec[T], place: SinkShard, session: CassandraSession, table: PreparedTable) -> None:
        self._spec = spec
        self._place = place
        self._session = session
        self._table = table
        self._found: TableProgress | None = None
        """The progress as this writer saw it last. An update whose condition fails shows that it is another one."""

    async def read_progress(self) -> None:
        """Look where the shard stands.

        Raises:
            CassandraError: Cassandra does not answer in time.
        """
        await self._settled(self._look)

    async def write(self, batch: SinkBatch[T]) -> None:
        until = _now() + self._table.send_seconds
        changes = self.changes(batch)  # a record that makes no row leaves everything as it is
        await self.put(batch, changes, await self.advance(batch), until)

    def changes(self, batch: SinkBatch[T]) -> list[RowChange]:
        """What the batch makes of the rows that it concerns.

        Raises:
            CassandraError: A record makes no row.
        """
        return changes_of(self._spec, self._table, batch.records)

    async def advance(self, batch: SinkBatch[T]) -> int:
        """Make the batch the newest one of the shard.

        Returns:
            The write time of its rows, in microseconds.

        Raises:
            CassandraError: It does not follow, or Cassandra does not answer in time.
        """

        async def attempt(repeated: bool) -> int:
            is_fresh = repeated
            while True:
                if is_fresh:
                    await self._look()
                clock = time.time_ns() // 1_000
                try:
                    target = next_progress(self._found, self._place, batch, clock, self._table.progress)
                except CassandraError:
                    if is_fresh:
                        raise
                else:
                    if await self._moved_to(target):
                        return target.time
                is_fresh = True  # another process, or a person, has changed the progress meanwhile

        return await self._settled(attempt)

    async def put(self, batch: SinkBatch[T], changes: Sequence[RowChange], write_time: int, until: float) -> None:
        """Write the rows of the batch.

        Args:
            batch: What is written, for errors.
            changes: What it makes of the rows.
            write_time: What :meth:`advance` returned.
            until: When it stops to send, by the clock of the time since the machine began.

        Raises:
            CassandraError: A row was refused, or Cassandra does not answer in time. Some rows may be there.
        """
        chunks = self._chunks(changes)

        async def send_some() -> None:
            for chunk in chunks:
                await self._send_chunk(batch, chunk, write_time, until)

        senders = [asyncio.ensure_future(send_some()) for _ in range(min(_SENDERS, len(changes)))]
        try:
            await asyncio.gather(*senders)
        finally:
            for sender in senders:
                sender.cancel()

    async def close(self) -> None:
        await self._session.close()

    async def _look(self, _: bool = False) -> None:
        rows = await self._session.execute(self._table.read, (self._place.sink, self._place.shard))
        self._found = TableProgress(*rows[0]) if rows else None

    async def _moved_to(self, target: TableProgress) -> bool:
        """Whether the progress is the target now, because nothing has moved it meanwhile."""
        values, found = (*target, self._place.sink, self._place.shard), self._found
        if found is None:
            answer = await self._session.execute(self._table.begin, values)
        else:
            answer = await self._session.execute(self._table.advance, (*values, found.run, found.id, found.time))
        if answer[0][0]:
            self._found = target
        return bool(answer[0][0])

    def _chunks(self, changes: Sequence[RowChange]) -> Iterator[Sequence[RowChange]]:
        """The rows, in groups of one partition: a group is one write there."""
        partitions: dict[tuple[bytes, ...], list[RowChange]] = {}
        for change in changes:
            partitions.setdefault(change.key[: self._table.columns.partition], []).append(change)
        for rows in partitions.values():
            for start in range(0, len(rows), _CHUNK_ROWS):
                yield rows[start : start + _CHUNK_ROWS]

    async def _send_chunk(self, batch: SinkBatch[T], chunk: Sequence[RowChange], write_time: int, until: float) -> None:
        try:
            await self._send([one for change in chunk for one in change.at(write_time)], until)
        except InvalidRequest as error:
            if len(chunk) > 1:  # one after the other, to see which one it is
                for change in chunk:
                    await self._send_chunk(batch, [change], write_time, until)
                return
            raise CassandraError(
                f"Cassandra refuses {shown_record(batch.records, chunk[0].record)} of batch {batch.number} of "
                f"{self._place.sink}, shard {self._place.shard}: {error}. Other rows of the batch may be there, and it "
                "comes again. Let the table take the row, or change row= in an update"
            ) from error

    async def _send(self, statements: Sequence[BoundStatement], until: float) -> None:
        """Send statements of one partition, and again while the outcome is unknown.

        Raises:
            InvalidRequest: They are refused.
        """

        def build() -> object:
            if _now() > until:
                raise CassandraError(
                    f"{self._place.sink}, shard {self._place.shard}: its rows were not sent within "
                    f"{self._table.send_seconds:g} s: the process stood still, or Cassandra is slow. The batch comes "
                    "again. If Cassandra is slow, give it more nodes or less other work for this batch, and the sink a "
                    "smaller batch_records= for later ones"
                )
            if len(statements) == 1:
                return statements[0]
            together = BatchStatement(BatchType.UNLOGGED, consistency_level=self._table.level)
            for one in statements:
                together.add(one)
            return together

        async def attempt(_: bool) -> None:
            try:
                await self._session.send_gated(build)
            except StoreUnavailableError as error:
                cause = error.__cause__
                if isinstance(cause, InvalidRequest) and not is_unknown(cause):
                    raise cause from None
                raise

        await self._settled(attempt)

    async def _settled(self, attempt: Callable[[bool], Awaitable[R]]) -> R:
        """The result of ``attempt``, which is repeated with a back-off while its outcome is unknown."""
        try:
            return await self._session.settle(attempt)
        except StoreError as error:
            where = f"{self._place.sink}, shard {self._place.shard}"
            raise CassandraError(
                f"{where} cannot be written, by the settings in {self._spec.settings}: {error}"
            ) from error


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
