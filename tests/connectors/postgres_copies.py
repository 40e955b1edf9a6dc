"""Copying the rows and reading the changes of the table ``stock`` of a database, as tests do it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import date
from types import TracebackType
from typing import Any

import msgspec

from deploy.local.postgres import PostgresServer
from millwheel.connectors import BadRecord, Source, SplitReader, postgres
from millwheel.connectors.postgres import ChangedRow, Position
from tests.connectors.postgres_changes import slot_of
from tests.connectors.postgres_tables import Database
from tests.patience import until


class Stock(msgspec.Struct):
    id: int
    left: int = 0


class Dated(msgspec.Struct):
    id: int
    day: date | None = None


def stocked(rows: int = 0, server: PostgresServer | None = None) -> Database:
    """A database with the table, which has so many rows."""
    made = Database(server=server)
    made.run('CREATE TABLE stock (id int PRIMARY KEY, "left" int, day date)')
    made.run("CREATE PUBLICATION shop FOR TABLE stock WITH (publish = 'insert, update, delete')")
    made.run("INSERT INTO stock SELECT one, 10 * one FROM generate_series(1, %s::int) AS one", rows)
    return made


def stock(shop: Database, kind: Any = Stock, **others: Any) -> Source[ChangedRow[Any], Position]:
    options = {"table": "stock", "slot": slot_of(shop), "publication": "shop", "conninfo": shop.conninfo, **others}
    return postgres.changes(kind, initial="copy", **options)


def rows_of(shop: Database) -> dict[int, int]:
    return dict(shop.run('SELECT id, "left" FROM stock'))


def applied(found: Sequence[ChangedRow[Any]]) -> dict[int, int]:
    """The rows that follow. What cannot be applied is a mistake: a row that comes twice, for example."""
    rows: dict[int, int] = {}
    places: dict[int, tuple[int, int]] = {}
    for one in found:
        for key in {row.id for row in (one.before, one.after) if row is not None}:
            assert places.get(key, (0, 0)) < (one.lsn, one.index), one
            places[key] = one.lsn, one.index
        if one.operation in ("read", "insert"):
            assert one.row.id not in rows, one
        else:
            del rows[one.row.id if one.before is None else one.before.id]
        if one.after is not None:
            assert one.after.id not in rows, one
            rows[one.after.id] = one.after.left
    return rows


class Copying:
    """A reader, and all that it has found. Usable with ``with``."""

    def __init__(self, shop: Database, position: Position | None = None, kind: Any = Stock, **others: Any) -> None:
        self._runner = asyncio.Runner()
        self.found: list[Any] = []
        self.at = position
        self.behind: int | None = 1
        self.reader: SplitReader[Any, Position] = self._runner.run(
            stock(shop, kind, **others).open_reader(slot_of(shop), position)
        )

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.run(self.reader.close())
        self._runner.close()

    @property
    def copied(self) -> int:
        """How many rows were read."""
        return sum(isinstance(one, ChangedRow) and one.operation == "read" for one in self.found)

    def until_rows(self, count: int) -> None:
        """Read until so many rows are copied."""
        self._runner.run(until(self._read, holds=lambda _: self.copied >= count))

    def until_end(self) -> None:
        """Read until nothing waits."""
        self._runner.run(until(self._read, holds=lambda behind: behind == 0))
        assert self.at is not None
        assert self.at.copy is None

    def read(self) -> int | None:
        """Read once. Returns what is behind."""
        return self._runner.run(self._read())

    async def _read(self) -> int | None:
        read = await self.reader.read()
        self.found += [value for value, _ in read.records]
        self.at, self.behind = read.position, read.behind
        return read.behind

    @property
    def errors(self) -> list[str]:
        """What could not be read."""
        return [one.error for one in self.found if isinstance(one, BadRecord)]
