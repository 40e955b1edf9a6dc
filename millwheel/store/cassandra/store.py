"""The store contract on Cassandra."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Self

from cassandra.cluster import Cluster
from cassandra.cluster import Session as DriverSession
from cassandra.query import PreparedStatement

from millwheel.model.incarnation import IncarnationId
from millwheel.store import journal_rules as rules
from millwheel.store.cassandra.journals import Journals
from millwheel.store.cassandra.opening import open_session
from millwheel.store.cassandra.parts import Parts
from millwheel.store.cassandra.schema import prepare_keyspace, until_known
from millwheel.store.cassandra.session import CassandraSession, writing_at
from millwheel.store.cassandra.settings import CassandraSettings
from millwheel.store.cassandra.states import States
from millwheel.store.contract import Append, JournalHead, PartId, StateRow

__all__ = ["CassandraStore"]


class CassandraStore:
    """A :class:`~millwheel.store.contract.StateStore` on Apache Cassandra.

    While Cassandra is unavailable every call raises StoreUnavailableError. The store reconnects by itself. A store that
    is left open is closed when ``asyncio.run`` ends its event loop.

    It has many methods: those of the contract.
    """

    def __init__(self, session: CassandraSession, journals: Journals, parts: Parts, states: States) -> None:
        """Use :meth:`open`."""
        self._session = session
        self._journals = journals
        self._parts = parts
        self._states = states
        self._at_loop_end: AsyncGenerator[None, None] | None = self._close_at_loop_end()

    @classmethod
    async def open(cls, settings: CassandraSettings) -> Self:
        """Connect, and make or check the keyspace and its tables.

        Raises:
            StoreUnavailableError: Cassandra is unavailable now. Open again later.
            StoreSettingsError: the credentials are wrong, the keyspace belongs to other software, or its schema is
                newer. The message names the setting.
        """
        session, (buckets, kinds) = await open_session(settings, partial(_prepared, settings))
        for statements in kinds:
            writing_at(statements, settings.write_level)
        if settings.direct_appends:
            try:
                await session.open_append_connections()
            except BaseException:
                await session.close()
                raise
        journals, parts = Journals(session, kinds[0]), Parts(session, kinds[1])
        store = cls(session, journals, parts, States(session, kinds[2], buckets, settings.write_level))
        if store._at_loop_end is not None:
            await anext(store._at_loop_end)
        return store

    def node_outages(self) -> dict[str, float]:
        """For how many seconds each node of Cassandra, host:port, has not answered this process; 0: it does."""
        return self._session.node_outages()

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        """See :meth:`StateStore.create_journal`."""
        await self._journals.create(journal, commit)

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.fence`."""
        return await self._journals.fence(journal, sequencer)

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.seal`."""
        return await self._journals.seal(journal, sequencer)

    async def read_head(self, journal: str) -> JournalHead:
        """See :meth:`StateStore.read_head`."""
        return await self._journals.head(journal)

    async def append(self, journal: str, append: Append) -> None:
        """See :meth:`StateStore.append`."""
        await self._journals.append(journal, append)

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        """See :meth:`StateStore.read_entries`."""
        return await self._journals.read_entries(journal, first, last)

    async def delete_entries(self, journal: str, below: int) -> None:
        """See :meth:`StateStore.delete_entries`. ValueError if a takeover would miss one of them."""
        await self._journals.delete_entries(journal, below)

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        """See :meth:`StateStore.write_part`."""
        await self._parts.write(journal, part, blob)

    async def read_parts(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        """See :meth:`StateStore.read_parts`."""
        return await self._parts.read(journal, parts)

    async def list_parts(self, journal: str) -> list[PartId]:
        """See :meth:`StateStore.list_parts`."""
        return await self._parts.list(journal)

    async def delete_parts(self, journal: str, parts: Sequence[PartId]) -> None:
        """See :meth:`StateStore.delete_parts`. ValueError if the committed head names one of them."""
        head = await self._journals.head_or_none(journal) if parts else None
        if head is not None:
            rules.check_unnamed(journal, head, parts)
            await self._parts.delete(journal, parts)

    async def write_states(
        self, incarnation: IncarnationId, journal: str, sequencer: int, rows: Sequence[StateRow]
    ) -> None:
        """See :meth:`StateStore.write_states`. A deposed owner's rows are committed, or older than the stored."""
        await self._states.write(incarnation, rows)

    async def read_states(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
        """See :meth:`StateStore.read_states`."""
        return await self._states.read(incarnation, keys)

    async def list_states(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """See :meth:`StateStore.list_states`."""
        return await self._states.listed(incarnation, start, end, limit)

    async def drop_journal(self, journal: str) -> None:
        """See :meth:`StateStore.drop_journal`."""
        await self._journals.drop(journal)
        await self._parts.drop(journal)

    async def drop_incarnation(self, incarnation: IncarnationId) -> None:
        """See :meth:`StateStore.drop_incarnation`."""
        await self._states.drop(incarnation)

    async def close(self) -> None:
        """See :meth:`StateStore.close`."""
        await self._session.close()
        at_loop_end, self._at_loop_end = self._at_loop_end, None
        if at_loop_end is not None:
            await at_loop_end.aclose()

    async def _close_at_loop_end(self) -> AsyncGenerator[None, None]:
        """Close the session when the event loop ends: ``asyncio.run`` closes all started asynchronous generators."""
        try:
            yield
        finally:
            await self._session.close()


def _prepared(
    settings: CassandraSettings, cluster: Cluster, driver: DriverSession
) -> tuple[int, list[dict[str, PreparedStatement]]]:
    """Make or check the tables. Returns the number of state buckets, and the statements of each kind of data."""
    return until_known(
        lambda: (
            prepare_keyspace(settings, cluster, driver),
            [kind.prepare(driver, settings.keyspace) for kind in (Journals, Parts, States)],
        ),
        settings.timeout_seconds,
    )
