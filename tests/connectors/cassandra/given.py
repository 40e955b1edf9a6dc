"""A table on the shared Cassandra node, of which each test has rows of its own, and batches for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from millwheel.connectors import Sink, SinkBatch, SinkShard, cassandra
from millwheel.connectors.cassandra.writer import TableWriter
from tests.components import cassandra as shared_node
from tests.connectors.given import at
from tests.patience import until

R = TypeVar("R")

KEYSPACE: Final = "sink_tests"
TABLES: Final = (
    f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} "
    "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
    f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.sales (test text, shelf int, item text, cents int, note text, "
    "made_by text, PRIMARY KEY ((test, shelf), item))",
)


class Sale(msgspec.Struct):
    """A row of a test. The items of a shelf are one partition."""

    test: str
    shelf: int
    item: str
    cents: int | msgspec.UnsetType | None = msgspec.UNSET
    note: str | msgspec.UnsetType | None = msgspec.UNSET
    gone: bool = False


class Row(msgspec.Struct):
    """What of a sale goes into the table."""

    test: str
    shelf: int
    item: str
    cents: int | msgspec.UnsetType | None = msgspec.UNSET
    note: str | msgspec.UnsetType | None = msgspec.UNSET


def row_of(sale: Sale) -> Row:
    return Row(sale.test, sale.shelf, sale.item, sale.cents, sale.note)


def is_gone(sale: Sale) -> bool:
    return sale.gone


def settings_text(**changed: Any) -> str:
    """A file of settings for the shared node."""
    node = shared_node()
    known = {
        "contact_points": list(node.contact_points),
        "username": node.username,
        "password": node.password,
        "timeout_seconds": 20,
        **changed,
    }
    return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in known.items())


@dataclass
class Shop:
    """The rows of one test.

    Attributes:
        name: Begins the names of its sinks, and is the first column of its rows.
        folder: Where the file of settings is.
        driver: A session of the driver, to look at the table and to write to it as another program does.
    """

    name: str
    folder: Path
    driver: Any

    def settings(self, **changed: Any) -> Path:
        """The file of settings, written again."""
        path = self.folder / "cassandra.toml"
        path.write_text(settings_text(**changed))
        return path

    def sink(self, *, changed: dict[str, Any] | None = None, **options: Any) -> Sink[Any]:
        """A sink into the table of sales."""
        path = self.settings(**(changed or {}))
        options = {"row": row_of, "delete": is_gone, **options}
        return cassandra.sink(f"{KEYSPACE}.sales", Row, settings=path, **options)

    def place(self, *, run: int = 1, shard: int = 0) -> SinkShard:
        return SinkShard(f"{self.name}/sales-table", shard, 2, run)

    def sale(self, item: str, cents: int | msgspec.UnsetType | None = msgspec.UNSET, **more: Any) -> Sale:
        return Sale(self.name, len(item), item, cents, **more)

    def batch(self, number: int, *sales: Sale, id: str = "", after: str | None = None) -> SinkBatch[Sale]:
        """A batch whose id is its number, and that comes after the one with the number before."""
        former = str(number - 1) if number > 1 else ""
        records = [(sale, at(number)) for sale in sales]
        return SinkBatch(number, records, id or str(number), former if after is None else after)

    def rows(self, columns: str = "cents, note") -> dict[str, Any]:
        """The rows of the test, by item."""
        select = f"SELECT item, {columns} FROM {KEYSPACE}.sales WHERE test = %s ALLOW FILTERING"
        return {item: values[0] if len(values) == 1 else tuple(values) for item, *values in self.run(select, self.name)}

    def run(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement as another program does."""
        return list(self.driver.execute(statement, values or None))

    def progress(self, shard: int = 0) -> tuple[Any, ...]:
        """Run, number, id and time of a shard."""
        select = f"SELECT run, number, id, time FROM {KEYSPACE}.millwheel_progress WHERE sink = %s AND shard = %s"
        ((*found,),) = self.run(select, f"{self.name}/sales-table", shard)
        return tuple(found)


def with_writers(sink: Sink[Any], *places: SinkShard, do: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Run ``do`` with a writer of each place."""

    async def run() -> None:
        writers: list[TableWriter[Any]] = []
        try:
            for one in places:
                writers.append(await opened(sink, one))
            await do(*writers)
        finally:
            for writer in writers:
                await writer.close()

    asyncio.run(run())


async def until_done(call: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Call, and again while Cassandra does not answer in time, as a worker does. Other errors are raised."""
    results: list[R] = []

    async def done() -> bool:
        try:
            results.append(await call())
        except cassandra.CassandraError as error:
            if "tried again" not in str(error):
                raise
        return bool(results)

    await until(done)
    return results[0]


async def opened(sink: Sink[Any], place: SinkShard) -> TableWriter[Any]:
    """Open a writer."""
    writer = await until_done(lambda: sink.open_writer(place))
    assert isinstance(writer, TableWriter)
    return writer


def written(shop: Shop, sink: Sink[Any], *batches: Sequence[Sale]) -> None:
    """Write batches with these sales, one after the other."""

    async def do(writer: TableWriter[Any]) -> None:
        for number, sales in enumerate(batches, 1):
            await writer.write(shop.batch(number, *sales))

    with_writers(sink, shop.place(), do=do)
