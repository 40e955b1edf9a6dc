"""The states in a snapshot as a table of Arrow, and as a Parquet file for Spark and others (docs/arrow.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError as error:
    from millwheel.sdk.errors import UsageError

    raise UsageError("tables need pyarrow: install MillWheel with the extra arrow") from error

from millwheel.client.arrow.state import StateColumns
from millwheel.client.background import BackgroundLoop
from millwheel.snapshots.location import SnapshotLocation
from millwheel.snapshots.states import SnapshotStates, find_states

__all__ = ["read_snapshot_state", "write_snapshot_state"]

T = TypeVar("T")


def read_snapshot_state(location: str, snapshot: str, computation: str) -> pa.Table:
    """The states of all keys of a computation in a snapshot, in the order of the keys, as a table in memory.

    All rows are of the snapshot's moment. No cluster is needed, and none of the user's code.
    For example::

        models = read_snapshot_state("./backups", "monday", "zeitgeist/model").to_pandas()

    Args:
        location: The directory or the URL with the snapshots, as ``millwheel snapshot list`` takes it.
        snapshot: The snapshot's name.
        computation: ``TOPOLOGY/COMPUTATION``, such as ``"zeitgeist/model"``.

    Returns:
        The columns of :func:`millwheel.client.arrow.read_state`. Timers that are far ahead are among the others.

    Raises:
        RequestError: The snapshot cannot be read or has no such computation; or a state is of an earlier version of the
            code, which converts states when it reads them (reason ``STATE_OF_EARLIER_VERSION``).
        ValueDecodeError: A state is not of the declared type. The error names its key.
    """

    async def read() -> pa.Table:
        found = await _find(location, snapshot, computation)
        columns = StateColumns(computation, found.spec.state)
        return pa.Table.from_batches([one async for one in _batches(found, columns)], columns.schema)

    return _run(read())


def write_snapshot_state(location: str, snapshot: str, computation: str, file: Path) -> int:
    """Write these states to a Parquet file, some thousand keys at a time. The file appears when it is whole.

    For example::

        write_snapshot_state("s3://backups/millwheel", "monday", "zeitgeist/model", Path("models.parquet"))

    Args:
        location: The directory or the URL with the snapshots.
        snapshot: The snapshot's name.
        computation: ``TOPOLOGY/COMPUTATION``.
        file: The file. It is replaced if it exists.

    Returns:
        The number of keys.

    Raises:
        RequestError: As for :func:`read_snapshot_state`.
        ValueDecodeError: As there.
        OSError: The file cannot be written.
    """

    async def write(part: Path) -> int:
        found = await _find(location, snapshot, computation)
        columns = StateColumns(computation, found.spec.state)
        keys = 0
        with pq.ParquetWriter(part, columns.schema) as writer:
            async for batch in _batches(found, columns):
                await asyncio.to_thread(writer.write_batch, batch)
                keys += batch.num_rows
        return keys

    part = file.with_name(f".{file.name}.part")
    try:
        keys = _run(write(part))
        part.replace(file)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return keys


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it in a loop of its own: the caller may be in one, as in a notebook."""
    loop = BackgroundLoop("millwheel-reading-snapshot")
    try:
        return loop.run(work)
    finally:
        loop.stop()


async def _find(location: str, snapshot: str, computation: str) -> SnapshotStates:
    return await find_states(SnapshotLocation(location).folder(snapshot), computation)


async def _batches(found: SnapshotStates, columns: StateColumns) -> AsyncIterator[pa.RecordBatch]:
    async for page in found.pages():
        yield columns.batch(page)
