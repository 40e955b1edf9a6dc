"""Base parts in Cassandra. The key contains the writer's sequencer; the value is stored in chunks of limited size."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from cassandra.cluster import Session as DriverSession
from cassandra.query import PreparedStatement

from millwheel.model.envelope import unwrap, wrap
from millwheel.store.cassandra.journals import FOR_EVER
from millwheel.store.cassandra.session import CassandraSession
from millwheel.store.contract import PartId

__all__ = ["CHUNK_BYTES", "Parts"]

CHUNK_BYTES: Final = 1 << 20

_ONE: Final = "journal = ? AND name = ? AND sequencer = ? AND commit = ?"
STATEMENTS: Final = {
    "write": "INSERT INTO {k}.parts (journal, name, sequencer, commit, chunk, value) VALUES (?, ?, ?, ?, ?, ?)",
    "read": f"SELECT value FROM {{k}}.parts WHERE {_ONE}",
    "list": "SELECT name, sequencer, commit FROM {k}.parts WHERE journal = ? GROUP BY name, sequencer, commit",
    "delete": f"DELETE FROM {{k}}.parts WHERE {_ONE}",
    "drop": f"DELETE FROM {{k}}.parts USING TIMESTAMP {FOR_EVER} WHERE journal = ?",
}


class Parts:
    """The base parts of one keyspace."""

    def __init__(self, session: CassandraSession, statements: dict[str, PreparedStatement]) -> None:
        """``statements``: the result of :meth:`prepare`."""
        self._session = session
        self._statements = statements

    @staticmethod
    def prepare(driver: DriverSession, keyspace: str) -> dict[str, PreparedStatement]:
        """Prepare the statements. Blocks."""
        return {name: driver.prepare(text.format(k=keyspace)) for name, text in STATEMENTS.items()}

    async def write(self, journal: str, part: PartId, blob: bytes) -> None:
        """See :meth:`StateStore.write_part`. The checksum covers all chunks, so a missing chunk is found as damage."""
        value = wrap(blob)
        for number, start in enumerate(range(0, len(value), CHUNK_BYTES)):
            chunk = value[start : start + CHUNK_BYTES]
            await self._session.repeat(self._statements["write"], (*_key(journal, part), number, chunk))

    async def read(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        """See :meth:`StateStore.read_parts`."""
        return list(await asyncio.gather(*(self._read_one(journal, part) for part in parts)))

    async def list(self, journal: str) -> list[PartId]:
        """See :meth:`StateStore.list_parts`."""
        rows = await self._session.repeat(self._statements["list"], (journal,))
        return [PartId(name, sequencer, commit) for name, sequencer, commit in rows]

    async def delete(self, journal: str, parts: Sequence[PartId]) -> None:
        """See :meth:`StateStore.delete_parts`."""
        delete = self._statements["delete"]
        await asyncio.gather(*(self._session.execute_gated(delete, _key(journal, part)) for part in parts))

    async def drop(self, journal: str) -> None:
        """Delete all parts of ``journal``, including parts that a deposed owner writes later."""
        await self._session.repeat(self._statements["drop"], (journal,))

    async def _read_one(self, journal: str, part: PartId) -> bytes:
        rows = await self._session.repeat(self._statements["read"], _key(journal, part))
        where = f"part {part.name!r} of journal {journal} (sequencer {part.sequencer}, commit {part.commit})"
        return unwrap(b"".join(row[0] for row in rows) if rows else None, where)


def _key(journal: str, part: PartId) -> tuple[str, str, int, int]:
    return journal, part.name, part.sequencer, part.commit
