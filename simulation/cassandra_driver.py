"""Replaces Cassandra's driver: prepared statements, answers, write times, and each process's store on top of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from cassandra import ConsistencyLevel

from millwheel.store.cassandra import CassandraSettings, CassandraStore
from millwheel.store.cassandra.journals import Journals
from millwheel.store.cassandra.parts import Parts
from millwheel.store.cassandra.session import CassandraSession, writing_at
from millwheel.store.cassandra.states import States
from millwheel.store.contract import Append, StoreError
from simulation.clocks import BEGINNING
from simulation.cql import parsed
from simulation.process import Process, ProcessStep
from simulation.remote import Remote
from simulation.store import StoreWatch

__all__ = ["Bound", "Driver", "OwnedStore", "Prepared", "SentBatch", "opened"]

_SETTINGS: Final = CassandraSettings(contact_points=("store:9042",), timeout_seconds=2.0)
_BUCKETS: Final = 3


class Prepared:
    """A prepared statement."""

    def __init__(self, text: str) -> None:
        self.query_string = text
        self.consistency_level: int = ConsistencyLevel.QUORUM
        self.statements = parsed(text)

    def bind(self, values: Sequence[Any]) -> Bound:
        """As in the driver."""
        return Bound(self, tuple(values))


class Bound:
    """A statement with its values."""

    __slots__ = ("prepared", "values")

    def __init__(self, prepared: Prepared, values: Sequence[Any]) -> None:
        self.prepared = prepared
        self.values = values


class SentBatch:
    """As the driver's ``BatchStatement``."""

    def __init__(self, kind: object, consistency_level: int) -> None:
        self.bound: list[Bound] = []

    def add(self, prepared: Prepared, values: Sequence[Any]) -> None:
        """As in the driver."""
        self.bound.append(prepared.bind(values))


class Service(Protocol):
    """The simulated cluster, as its clients see it."""

    watch: StoreWatch
    remote: Remote

    def now(self) -> float:
        """Virtual seconds since the run began."""

    def serve(self, who: str, sent: Bound | SentBatch, stamp: int) -> list[tuple[Any, ...]]:
        """Execute what ``who`` sent, at the write time ``stamp``."""


class _Response:
    """Both the driver's future for an answer and the simulation's future. It is settled once."""

    has_more_pages = False

    def __init__(self) -> None:
        self.timer: ProcessStep | None = None
        self._callbacks: tuple[Callable[[Any], object], Callable[[BaseException], object]] | None = None
        self._done = False

    def add_callbacks(self, callback: Callable[[Any], object], errback: Callable[[BaseException], object]) -> None:
        """As in the driver."""
        self._callbacks = callback, errback

    def clear_callbacks(self) -> None:
        """As in the driver: the caller no longer waits."""
        self._callbacks = None
        self._settle()

    def done(self) -> bool:
        """As in asyncio."""
        return self._done

    def set_result(self, rows: Any) -> None:
        """As in asyncio."""
        self._settle()
        if self._callbacks is not None:
            self._callbacks[0](rows)

    def set_exception(self, error: BaseException) -> None:
        """As in asyncio."""
        self._settle()
        if self._callbacks is not None:
            self._callbacks[1](error)

    def _settle(self) -> None:
        self._done = True
        if self.timer is not None:
            self.timer.cancel()


class Driver:
    """The driver's session in one incarnation of one process."""

    def __init__(self, service: Service, process: Process) -> None:
        self._service = service
        self._process = process
        self._last = 0

    def prepare(self, text: str) -> Prepared:
        """As in the driver."""
        return Prepared(text)

    def execute_async(self, sent: Bound | SentBatch, timeout: float) -> _Response:
        """As in the driver. Write times are the process's wall time in microseconds, and grow with each request."""
        who, stamp, response = str(self._process), self._stamp(), _Response()
        response.timer = self._service.remote.post(response, lambda: self._service.serve(who, sent, stamp))
        return response

    def _stamp(self) -> int:
        wall = BEGINNING + self._process.clock.wall(self._service.now())
        self._last = max(self._last + 1, int(wall * 1e6))
        return self._last


class OwnedStore(CassandraStore):
    """A process's store. It reports calls that no process may make."""

    service: Service
    who: str

    async def append(self, journal: str, append: Append) -> None:
        """See :meth:`StateStore.append`."""
        self.service.watch.asked(self.who, journal, append)
        await super().append(journal, append)


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(store: OwnedStore, *arguments: Any, **named: Any) -> Any:
        try:
            return await method(store, *arguments, **named)
        except StoreError:
            raise
        except Exception as error:
            store.service.watch.misused(store.who, error)
            raise

    return call


_CALLS: Final = ("create_journal", "fence", "seal", "append", "delete_entries", "delete_parts", "write_states")
for _name in _CALLS:
    setattr(OwnedStore, _name, _watched(getattr(OwnedStore, _name)))


def opened(driver: Driver, service: Service, who: str) -> OwnedStore:
    """The store of one process, as :meth:`CassandraStore.open` makes it without ``direct_appends``."""
    session = CassandraSession(_SETTINGS, cast("Any", None), cast("Any", driver))
    kinds = [kind.prepare(cast("Any", driver), _SETTINGS.keyspace) for kind in (Journals, Parts, States)]
    for statements in kinds:
        writing_at(statements, _SETTINGS.write_level)
    journals, parts = Journals(session, kinds[0]), Parts(session, kinds[1])
    store = OwnedStore(session, journals, parts, States(session, kinds[2], _BUCKETS, _SETTINGS.write_level))
    store.service, store.who = service, who
    return store
