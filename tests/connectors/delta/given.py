"""What tests of tables use: batches, and a reader of the log that knows no library but pyarrow's Parquet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from millwheel.connectors import Sink, SinkBatch, SinkShard, SinkWriter
from millwheel.connectors.files.places import parse_root
from millwheel.connectors.files.storage import storage_of
from tests.connectors.files.given import Sale
from tests.connectors.given import at

RUN = 5


def place(shard: int = 0, run: int = RUN) -> SinkShard:
    return SinkShard("shop/sales-table", shard, 4, run)


def id_of(number: int, salt: str = "") -> str:
    return blake2b(f"{number} {salt}".encode(), digest_size=16).hexdigest() if number else ""


def batch(number: int, *values: Any, salt: str = "", after: str | None = None) -> SinkBatch[Any]:
    """A batch of sales, or of other records, behind the one with the number before."""
    records = [(Sale("tea", one) if isinstance(one, int) else one, at(0)) for one in values]
    former = id_of(number - 1, salt) if after is None else after
    return SinkBatch(number, records, id_of(number, salt), former)


def with_writers(sink: Sink[Any], *places: SinkShard, do: Callable[..., Coroutine[Any, Any, None]]) -> None:
    """Run ``do`` with a writer of each place."""

    async def run() -> None:
        writers = [await sink.open_writer(one) for one in places]
        await do(*writers)
        for writer in writers:
            await writer.close()

    asyncio.run(run())


def write(sink: Sink[Any], *batches: SinkBatch[Any], place: SinkShard = place()) -> None:  # noqa: B008  # it is frozen
    """Write batches by a writer of their own."""

    async def do(writer: SinkWriter[Any]) -> None:
        for one in batches:
            await writer.write(one)

    with_writers(sink, place, do=do)


def commits(table: str | Path) -> list[list[dict[str, Any]]]:
    """The log of a table: the actions of each commit."""
    storage = storage_of(parse_root(table))
    names = [name for name in storage.find(["_delta_log", "*.json"]) if name[11:31].isdigit()]
    contents = [storage.load(name) for name in names]
    return [[json.loads(line) for line in one.content.splitlines()] for one in contents if one is not None]


def rows_in(table: str | Path) -> list[dict[str, Any]]:
    """The rows of a table that nothing was removed from, in the order of its commits."""
    return [row for one in batches_in(table) for row in one]


def batches_in(table: str | Path) -> list[list[dict[str, Any]]]:
    """The rows of each commit that has some."""
    storage, found = storage_of(parse_root(table)), []
    for actions in commits(table):
        rows: list[dict[str, Any]] = []
        for add in (action["add"] for action in actions if "add" in action):
            stored = storage.load(unquote(add["path"]))
            assert stored is not None
            assert len(stored.content) == add["size"]
            values = pq.read_table(pa.BufferReader(stored.content)).to_pylist()
            rows += [{**value, **add["partitionValues"]} for value in values]
        if rows:
            found.append(rows)
    return found


def cents_in(table: str | Path) -> list[int]:
    return sorted(row["cents"] for row in rows_in(table))
