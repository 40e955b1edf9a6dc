"""Damaged values in a real etcd and a real Cassandra, written past our code."""

from __future__ import annotations

from contextlib import AsyncExitStack
from random import Random
from uuid import uuid4

from cassandra.cluster import Cluster

from millwheel.coordination.contract import DamagedValueError, Put
from millwheel.coordination.etcd import EtcdCoordinator, EtcdSettings
from millwheel.model.envelope import wrap
from millwheel.store.cassandra import CassandraStore
from millwheel.store.cassandra.session import connect
from millwheel.store.cassandra.states import bucket_of
from millwheel.store.contract import Append, CorruptValueError, PartId, StateRow
from millwheel.store.layout import commit_bytes, encode_parts
from tests.components import cassandra, cassandra_settings, etcd, put_raw
from tests.fuzz.odd import damaged
from tests.fuzz.tally import Unclear

__all__ = ["CassandraRows", "EtcdValues"]


class EtcdValues:
    """A surface: each case is one value in etcd."""

    name = "etcd"

    async def __aenter__(self) -> EtcdValues:
        self._prefix = f"fuzz-{uuid4()}/"
        self._coordinator = EtcdCoordinator(EtcdSettings(etcd().endpoints, prefix=self._prefix))
        await self._coordinator.transact([], [Put("whole", b"whole")])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._coordinator.close()

    async def case(self, random: Random) -> str:
        """One damaged value, listed with a whole one."""
        value = wrap(random.randbytes(random.randrange(300)))
        bad = damaged(random, value)
        if bad == value:
            return "UNCHANGED"
        coordinator = self._coordinator
        await put_raw(f"{self._prefix}bad", bad)
        try:
            await coordinator.get("bad")
        except DamagedValueError:
            first, second = (await coordinator.list("")).entries
            if first.value or not first.damage or (second.value, second.damage) != (b"whole", ""):
                raise Unclear(f"listed as {first} and {second}") from None
            return "value named"
        raise Unclear(f"{bad!r} was served")


class CassandraRows:
    """A surface: each case is one row in Cassandra."""

    name = "cassandra"

    def __init__(self) -> None:
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> CassandraRows:
        self._settings = cassandra_settings(cassandra(), "fuzz")
        self._store = await CassandraStore.open(self._settings)
        self._stack.push_async_callback(self._store.close)
        # The store's own connections are the event loop's, which this one holds up while it waits.
        cluster, self._driver = connect(self._settings, Cluster.connection_class)
        self._stack.callback(cluster.shutdown)
        self._journal = f"fuzz.{uuid4().hex}"
        self._part = PartId("timers", 1, 1)
        await self._store.create_journal(self._journal)
        await self._store.fence(self._journal, 1)
        await self._store.write_part(self._journal, self._part, b"part" * 20)
        await self._store.append(self._journal, Append(1, 1, 0, (self._part,), b"entry" * 20))
        await self._store.write_states(self._journal, self._journal, 1, [StateRow(b"k", 1, b"state" * 20)])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def case(self, random: Random) -> str:
        """One damaged value of one of the tables."""
        kind = random.choice(("entry", "part", "state", "part list"))
        whole = {
            "entry": wrap(b"entry" * 20),
            "part": wrap(b"part" * 20),
            "state": wrap(commit_bytes(1) + b"state" * 20),
            "part list": encode_parts((self._part,)),
        }[kind]
        bad = damaged(random, whole)
        if bad == whole:
            return "UNCHANGED"
        self._write(kind, bad)
        try:
            found = await self._read(kind)
        except CorruptValueError as error:
            if self._journal not in error.where:
                raise Unclear(f"{error.where} where {kind} of {self._journal} is damaged") from error
            return f"{kind} named"
        finally:
            self._write(kind, whole)
        raise Unclear(f"{kind} is damaged, and was served as {found!r:.300}")

    def _write(self, kind: str, value: bytes) -> None:
        keyspace, journal = self._settings.keyspace, self._journal
        place: tuple[object, ...]
        if kind == "entry":
            text, place = f"UPDATE {keyspace}.journals SET value = %s WHERE journal = %s AND entry = 1", (journal,)
        elif kind == "part list":
            text, place = f"UPDATE {keyspace}.journals SET parts = %s WHERE journal = %s", (journal,)
        elif kind == "part":
            text = (
                f"UPDATE {keyspace}.parts SET value = %s WHERE journal = %s AND name = 'timers' AND sequencer = 1 "
                "AND commit = 1 AND chunk = 0"
            )
            place = (journal,)
        else:
            text = f"UPDATE {keyspace}.states SET value = %s WHERE computation = %s AND bucket = %s AND key = %s"
            place = (journal, bucket_of(b"k", self._settings.state_buckets), b"k")
        self._driver.execute(text, (value, *place))

    async def _read(self, kind: str) -> object:
        if kind == "entry":
            return await self._store.read_entries(self._journal, 1, 1)
        if kind == "part":
            return await self._store.read_parts(self._journal, [self._part])
        if kind == "part list":
            return await self._store.read_head(self._journal)
        return await self._store.read_states(self._journal, [b"k"])
