"""Reading the changes of the table ``sales`` of a database, as tests do it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millwheel.connectors import BadRecord, Read, Source, SplitReader, postgres
from millwheel.connectors.postgres import ChangedRow, Position, PostgresError
from tests.connectors.postgres_tables import Database
from tests.patience import until


class Sale(msgspec.Struct):
    item: str
    cents: int = 0


def slot_of(shop: Database) -> str:
    return f"slot_{shop.name}"


def sales(shop: Database, kind: Any = Sale, **others: Any) -> Source[ChangedRow[Any], Position]:
    options = {"table": "sales", "slot": slot_of(shop), "publication": "shop", "conninfo": shop.conninfo, **others}
    return postgres.changes(kind, **options)


async def caught_up(reader: SplitReader[Any, Position]) -> tuple[list[Any], Position]:
    """All that a reader finds now, and the position behind it."""
    found: list[Any] = []

    async def read() -> Read[Any, Position]:
        read = await reader.read()
        found.extend(value for value, _ in read.records)
        return read

    return found, (await until(read, holds=lambda read: read.behind == 0)).position


def changes_of(
    shop: Database, *work: str | Callable[[], object], kind: Any = Sale, **others: Any
) -> list[ChangedRow[Any] | BadRecord]:
    """What a reader that begins before some work finds after it."""

    async def run() -> list[Any]:
        reader = await sales(shop, kind, **others).open_reader(slot_of(shop), None)
        try:
            await caught_up(reader)
            for one in work:
                shop.run(one) if isinstance(one, str) else one()
            return (await caught_up(reader))[0]
        finally:
            await reader.close()

    return asyncio.run(run())


def begun(shop: Database, slot: str = "") -> Position:
    """The position of a slot that is made now."""

    async def run() -> Position:
        reader = await sales(shop, slot=slot or slot_of(shop)).open_reader(slot or slot_of(shop), None)
        try:
            return (await caught_up(reader))[1]
        finally:
            await reader.close()

    return asyncio.run(run())


def in_short(change: ChangedRow[Sale] | BadRecord) -> tuple[str, str, int]:
    assert isinstance(change, ChangedRow)
    return change.operation, change.row.item, change.row.cents


def error_of(shop: Database, position: Position | None, **others: Any) -> str:
    """The error of a reader at a position."""

    async def run() -> None:
        reader = await sales(shop, **others).open_reader(slot_of(shop), position)
        try:
            await caught_up(reader)
        finally:
            await reader.close()

    with pytest.raises(PostgresError) as refused:
        asyncio.run(run())
    return str(refused.value)
