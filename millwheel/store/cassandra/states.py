"""State rows in Cassandra: a hash of the key selects the bucket, and the commit number is the write time.

Invariant (G3): of two writes of a row, the one with the larger commit number stays, in any order, from any senders.
Cassandra guarantees this: it keeps the cell with the larger write time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final
from zlib import crc32

from cassandra import ConsistencyLevel
from cassandra.cluster import Session as DriverSession
from cassandra.query import BatchStatement, BatchType, PreparedStatement

from millwheel.model.envelope import wrap
from millwheel.model.incarnation import IncarnationId
from millwheel.store.cassandra.journals import FOR_EVER, MAX_VALUE_BYTES
from millwheel.store.cassandra.session import CassandraSession, Row
from millwheel.store.contract import StateRow, StoreError
from millwheel.store.layout import commit_bytes, decode_row

__all__ = ["EMPTY_SECONDS", "States", "bucket_of"]

EMPTY_SECONDS: Final = 10 * 24 * 3600
"""How long the mark of an emptied row protects against older writes that arrive late (hints for a node that was down,
for example). Cassandra must be repaired at least this often, as it requires in any case."""

BATCH_ROWS: Final = 100
_BATCH_BYTES: Final = 128 << 10
_READ_KEYS: Final = 100
MAX_CONCURRENT_WRITES: Final = 8
"""Batches of one call that are sent or wait at the gate. The limit leaves room for other callers' reads."""
_LIST_BUCKETS: Final = 16
"""Buckets that a listing reads at a time."""
_PAST_ALL_KEYS: Final = b"\xff" * 16
"""A bound above all rows. UTF-8 has no byte 255. A page of the empty key has one, and its number of 8 bytes at most."""
_INSERT: Final = "INSERT INTO {k}.states (incarnation, bucket, key, value) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
STATEMENTS: Final = {
    "write": _INSERT,
    "empty": f"{_INSERT} AND TTL {EMPTY_SECONDS}",
    "read": "SELECT key, value FROM {k}.states WHERE incarnation = ? AND bucket = ? AND key IN ?",
    "list": "SELECT key FROM {k}.states WHERE incarnation = ? AND bucket = ? AND key >= ? AND key < ? LIMIT ?",
    "drop": f"DELETE FROM {{k}}.states USING TIMESTAMP {FOR_EVER} WHERE incarnation = ? AND bucket = ?",
}


def bucket_of(key: bytes, buckets: int) -> int:
    """Return the bucket of ``key``. The stored data depends on this function, so it must never change."""
    return crc32(key) % buckets


class States:
    """The state rows of one keyspace."""

    def __init__(
        self,
        session: CassandraSession,
        statements: dict[str, PreparedStatement],
        buckets: int,
        level: int = ConsistencyLevel.QUORUM,
    ) -> None:
        """``statements``: from :meth:`prepare`; ``buckets``: the keyspace's; ``level``: consistency of writes."""
        self._level = level
        self._session = session
        self._statements = statements
        self._buckets = buckets

    @staticmethod
    def prepare(driver: DriverSession, keyspace: str) -> dict[str, PreparedStatement]:
        """Prepare the statements. Blocks."""
        return {name: driver.prepare(text.format(k=keyspace)) for name, text in STATEMENTS.items()}

    async def write(self, incarnation: IncarnationId, rows: Sequence[StateRow]) -> None:
        """See :meth:`StateStore.write_states`. Each batch goes to one partition, so it is one mutation there."""
        for row in rows:
            if len(row.key) + len(row.blob) > MAX_VALUE_BYTES:
                raise StoreError(f"the state of key {row.key!r} of {incarnation} exceeds {MAX_VALUE_BYTES} bytes")
        batches = self._batches(rows)

        async def write_some() -> None:
            for bucket, batch in batches:
                await self._write_batch(incarnation, bucket, batch)

        writers = [asyncio.ensure_future(write_some()) for _ in range(MAX_CONCURRENT_WRITES)]
        try:
            await asyncio.gather(*writers)
        finally:
            for writer in writers:
                writer.cancel()

    async def read(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
        """See :meth:`StateStore.read_states`."""
        by_bucket: dict[int, list[bytes]] = {}
        for key in dict.fromkeys(keys):
            by_bucket.setdefault(bucket_of(key, self._buckets), []).append(key)
        answers = await asyncio.gather(
            *(
                self._execute("read", (incarnation, bucket, some[start : start + _READ_KEYS]))
                for bucket, some in by_bucket.items()
                for start in range(0, len(some), _READ_KEYS)
            )
        )
        found = {key: decode_row(incarnation, key, value) for rows in answers for key, value in rows}
        return [row if row is not None and row.blob else None for row in (found.get(key) for key in keys)]

    async def listed(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """See :meth:`StateStore.list_states`. Each bucket has a part of the keys, in order, so all are asked."""
        bounds = start, _PAST_ALL_KEYS if end is None else end
        found: list[bytes] = []
        for first in range(0, self._buckets, _LIST_BUCKETS):
            buckets = range(first, min(first + _LIST_BUCKETS, self._buckets))
            answers = await asyncio.gather(
                *(self._execute("list", (incarnation, bucket, *bounds, limit)) for bucket in buckets)
            )
            found = sorted([*found, *(key for rows in answers for (key,) in rows)])[:limit]
        return found

    async def drop(self, incarnation: IncarnationId) -> None:
        """See :meth:`StateStore.drop_incarnation`. Writes one partition tombstone for each bucket."""
        await asyncio.gather(*(self._execute("drop", (incarnation, bucket)) for bucket in range(self._buckets)))

    def _batches(self, rows: Sequence[StateRow]) -> Iterator[tuple[int, list[StateRow]]]:
        waiting: dict[int, list[StateRow]] = {}
        sizes: dict[int, int] = {}
        for row in rows:
            bucket = bucket_of(row.key, self._buckets)
            batch = waiting.setdefault(bucket, [])
            batch.append(row)
            sizes[bucket] = sizes.get(bucket, 0) + len(row.key) + len(row.blob)
            if len(batch) >= BATCH_ROWS or sizes[bucket] >= _BATCH_BYTES:
                yield bucket, waiting.pop(bucket)
                del sizes[bucket]
        yield from waiting.items()

    async def _write_batch(self, incarnation: IncarnationId, bucket: int, rows: Sequence[StateRow]) -> None:
        write, empty = self._statements["write"], self._statements["empty"]

        def build() -> BatchStatement:
            batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self._level)
            for row in rows:
                value = wrap(commit_bytes(row.commit) + row.blob)
                batch.add(write if row.blob else empty, (incarnation, bucket, row.key, value, row.commit))
            return batch

        await self._session.settle(lambda _: self._session.send_gated(build))

    async def _execute(self, name: str, values: tuple[object, ...]) -> list[Row]:
        return await self._session.repeat(self._statements[name], values)
