"""Reads a stream's log into a table."""

from __future__ import annotations

from contextlib import aclosing

import pyarrow as pa

from millwheel.client.background import BackgroundLoop
from millwheel.client.control import DEFAULT_ADDRESS
from millwheel.client.kept_log import KeptLog
from millwheel.sdk.errors import UsageError
from millwheel.sdk.tables.columns import StreamColumns

__all__ = ["read_stream"]


def read_stream(
    stream: str,
    *,
    offset: int | None = None,
    since: int | None = None,
    end: int | None = None,
    count: int | None = None,
    offset_column: str = "",
    timestamp_column: str = "",
    address: str = DEFAULT_ADDRESS,
    patience: float = 60.0,
) -> pa.Table:
    """The records that a stream's log keeps, in the order of their offsets, as a table in memory.

    It reads what is there when it is called, and waits for nothing. It holds no record back, and leaves nothing behind.
    The columns are the fields of the stream's type; docs/arrow.md has the types. For example::

        last = read_stream("zeitgeist/windows", count=1_000, offset_column="offset").to_pandas()

    Args:
        stream: The full name of the stream, or its short name if no other topology has a stream of that name.
        offset: The offset of the first record. By default the oldest one that the log keeps.
        since: Begin at the first kept record with this timestamp or a larger one, in microseconds, instead of at an
            offset. Older records after it follow, too.
        end: The offset after the last record. By default the log's end.
        count: The most records.
        offset_column: The name of a column to add, with the offset of each record.
        timestamp_column: The name of a column to add, with the timestamp of each record.
        address: A master's address, as host or host:port; several with commas between them.
        patience: Seconds to look for a log that cannot be reached.

    Returns:
        The table. It is in memory as a whole: ``count`` bounds it.

    Raises:
        RequestError: The stream is unknown or has no log; the log does not keep the records from ``offset`` on any more
            (reason ``RECORDS_NOT_KEPT``); or its owner was not found in time.
        ValueDecodeError: A record is not of the stream's type. The error names its offset.
        UsageError: Two arguments contradict each other, or a column has the name of a field.
    """
    if offset is not None and since is not None:
        raise UsageError("offset and since are two places to begin: give one of them")

    async def read() -> pa.Table:
        async with KeptLog(stream, address=address, patience=patience) as kept:
            columns = StreamColumns(kept.spec, offset_column, timestamp_column)
            limit = await kept.end()
            first = offset if offset is not None else await _begin(kept, since)
            if end is not None:
                limit = min(limit, end)
            if count is not None:
                limit = min(limit, first + max(count, 0))
            batches = []
            # Between two calls the log may drop its oldest records. Only a stated offset is a promise.
            async with aclosing(kept.read(first, limit, lossy=offset is None)) as found:
                async for batch in found:
                    batches.append(columns.batch(batch.first_offset, batch.values, batch.timestamps))
            return pa.Table.from_batches(batches, columns.schema)

    loop = BackgroundLoop(f"millwheel-reading-{stream}")
    try:
        return loop.run(read())
    finally:
        loop.stop()


async def _begin(kept: KeptLog, since: int | None) -> int:
    return await kept.start() if since is None else await kept.first_since(since)
