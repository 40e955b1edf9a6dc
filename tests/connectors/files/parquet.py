"""Files of Parquet as tests read them: by columns, or row by row."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millwheel.connectors import Read, Source


def write(path: Path, columns: dict[str, Any], group: int = 10_000) -> None:
    """Write a file with these columns."""
    pq.write_table(pa.table(columns), path, row_group_size=group)


def read_tables(
    source: Source[Any, Any], split: str, most: int = 10_000, found: list[Read[Any, Any]] | None = None
) -> list[Read[Any, Any]]:
    """All reads of a file by a reader that may return columns.

    ``most``: the most records of a read. ``found`` gets them, also if one fails.
    """
    found = [] if found is None else found

    async def reads() -> list[Read[Any, Any]]:
        reader = await source.open_reader(split, None)
        reader._takes_tables = True  # noqa: SLF001  # as MillWheel does
        reader.most_records = most
        while not (found and found[-1].ended):
            found.append(await reader.read())
        await reader.close()
        return found

    return asyncio.run(reads())
