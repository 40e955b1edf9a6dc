"""The progress of a shard in a table of Cassandra, and the write time of a batch. Pure.

Cassandra keeps, of two writes of a column, the one with the larger write time, in any order of arrival. So the
sink states the time of each write. *Invariant (G1, G3): the write times of a shard grow with each attempt to write a
batch.* The row of the progress has the last one. A conditional update raises it, together with the id of the batch. So
what a former process still sends, or what arrives late, has a smaller time than all that was written after it. *Who may
break it:* a person who deletes the row, while the clocks of the workers are behind what it had.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from millwheel.connectors.cassandra.errors import CassandraError
from millwheel.connectors.progress import ShardProgress, follows, is_over, with_batch, without_batch
from millwheel.connectors.sink import SinkBatch, SinkShard

__all__ = ["PROGRESS", "TIMES", "TableProgress", "next_progress"]

PROGRESS: Final = "millwheel_progress"
"""The table of the progress, in the keyspace of the table that is written."""
TIMES: Final = 2
"""How many write times a batch has. At the first one it deletes rows that it then writes again, at the second one it
writes and deletes all others."""


class TableProgress(NamedTuple):
    """A row of the table of the progress.

    Attributes:
        run: That of the shard, as in ShardProgress.
        number: That of the newest batch of which rows may be there. All batches before it are there as a whole.
        id: That of this batch.
        time: The write time of the last attempt to write it, in microseconds.
    """

    run: int
    number: int
    id: str
    time: int


def next_progress(
    found: TableProgress | None, place: SinkShard, batch: SinkBatch[Any], now: int, table: str
) -> TableProgress:
    """The progress with one more attempt to write the batch, which is the next one or the newest.

    Each attempt has a time of its own: the program may have changed in between, so that the batch makes other rows.

    Args:
        found: The progress that is there. None: there is none.
        place: The shard.
        batch: What is to be written.
        now: The clock in microseconds. Times follow it, so that what other programs write by their clocks counts.
        table: The table of the progress, as CQL names it.

    Raises:
        CassandraError: The batch does not follow, because the topology or the keyspace was set back.

    >>> there = TableProgress(run=5, number=1, id="a", time=900)
    >>> second = SinkBatch(2, [], id="b", after="a")
    >>> next_progress(there, SinkShard("shop/sales", 0, 1, 5), second, 500, "shop.millwheel_progress")
    TableProgress(run=5, number=2, id='b', time=902)
    """
    shard = None if found is None else ShardProgress(found.run, found.number, found.id)
    if shard != with_batch(place, batch) and not follows(shard, place, batch):
        raise CassandraError(_apart(found, place, batch, table))
    time = now if found is None else max(now, found.time + TIMES)
    return TableProgress(place.run, batch.number, batch.id, time)


def _apart(found: TableProgress | None, place: SinkShard, batch: SinkBatch[Any], table: str) -> str:
    """What to do where the table stands elsewhere than the topology."""
    shard = f"{place.sink}, shard {place.shard}"
    run, number, after = msgspec.structs.astuple(without_batch(place, batch))
    here = f"{table} has {'no batch' if found is None else f'batch {found.number}'} of {shard}"
    if found is None:
        columns, values = "sink, shard, run, number, id, time", f"{run}, {number}, '{after}', 0"
        set_to = f"INSERT INTO {table} ({columns}) VALUES ('{place.sink}', {place.shard}, {values}) IF NOT EXISTS"
    else:
        set_to = (
            f"UPDATE {table} SET run = {run}, number = {number}, id = '{after}' "
            f"WHERE sink = '{place.sink}' AND shard = {place.shard} IF run = {found.run} AND id = '{found.id}'"
        )  # with what was found, so that it changes nothing if it is run twice, or after another batch
    go_on = f"Or go on, and what is missing or was set back stays so: {set_to}"
    if found is not None and found.run > place.run:
        return is_over(place, set_to)
    if found is not None and found.run == place.run and (not batch.after or found.number >= batch.number - 1):
        return (
            f"{here}, and another batch {batch.number} comes next: the topology was set back to an earlier time, and "
            "the keyspace was not. Set that back, too, or write to a sink of another name and another table. Or let "
            f"the records come again, which replace the rows of their keys: {set_to}"
        )
    return (
        f"{here}, and batch {batch.number} comes next: the keyspace was set back to an earlier time, or is another one."
        f" Put the former one back, or write to a sink of another name. {go_on}"
    )
