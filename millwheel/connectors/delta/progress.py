"""The progress of a shard in a table: transactions of the table's log, which are in the commit of a batch. Pure.

Delta Lake keeps the newest number of each application, and finds of two commits at one time those that set the same
one. So the progress and the records of a batch are there together, or neither is. A number is not enough for a batch:
its id is there, too, as two numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from millwheel.connectors.delta.errors import DeltaTableError
from millwheel.connectors.progress import ShardProgress, follows, is_over, with_batch, without_batch
from millwheel.connectors.sink import SinkBatch, SinkShard

__all__ = ["found_progress", "next_progress", "transactions"]


def transactions(place: SinkShard, progress: ShardProgress) -> dict[str, int]:
    """The progress as numbers of applications.

    >>> transactions(SinkShard("shop/sales", 0, 1, 5), ShardProgress(5, 17, "0" * 31 + "1"))
    {'millwheel/shop/sales/0/run': 5, 'millwheel/shop/sales/0/batch': 17, 'millwheel/shop/sales/0/id-1': 0,\
 'millwheel/shop/sales/0/id-2': 1}
    """
    first, second = struct.unpack(">qq", bytes.fromhex(progress.id.zfill(32)))
    numbers = (progress.run, progress.batch, first, second)
    return dict(zip(_applications(place), numbers, strict=True))


def found_progress(place: SinkShard, number_of: Callable[[str], int | None]) -> ShardProgress | None:
    """The progress that a table has. None: it has none of this shard.

    ``number_of``: the number of an application.
    """
    numbers = [number_of(one) for one in _applications(place)]
    run, batch, first, second = numbers
    if run is None or batch is None or first is None or second is None:
        return None
    return ShardProgress(run, batch, struct.pack(">qq", first, second).hex())


def next_progress(found: ShardProgress | None, place: SinkShard, batch: SinkBatch[Any], table: str) -> ShardProgress:
    """The progress with the batch. It is equal to ``found`` if the batch is there.

    Args:
        found: The progress that the table has.
        place: The shard.
        batch: What is to be written.
        table: The place of the table, for people.

    Raises:
        DeltaTableError: The batch does not follow, because the topology or the table was set back.
    """
    progress = with_batch(place, batch)
    if found != progress and not follows(found, place, batch):
        raise DeltaTableError(_apart(found, place, batch, table))
    return progress


def _applications(place: SinkShard) -> list[str]:
    return [f"millwheel/{place.sink}/{place.shard}/{part}" for part in ("run", "batch", "id-1", "id-2")]


def _apart(found: ShardProgress | None, place: SinkShard, batch: SinkBatch[Any], table: str) -> str:
    """What to do where the table stands elsewhere than the topology."""
    shard = f"{place.sink}, shard {place.shard}"
    former = msgspec.json.encode(transactions(place, without_batch(place, batch))).decode()
    set_to = f"set its progress, as docs/delta.md says, to {former}"
    if found is not None and found.run > place.run:
        return is_over(place, set_to)
    here = f"{table} has {'no batch' if found is None else f'batch {found.batch}'} of {shard}"
    if found is None or (batch.after and (found.run < place.run or found.batch < batch.number - 1)):
        return (
            f"{here}, and batch {batch.number} comes next: the table was set back to an earlier time, or is another "
            "one. Put the former one back, or write to a sink of another name. Or let records be missing. Then "
            f"{set_to}"
        )
    return (
        f"{here}, and another batch {batch.number} comes next: the topology was set back to an earlier time, and the "
        f"table was not. Take the records of this shard from batch {batch.number} on out of the table: they come "
        f"again. Then {set_to}. Or write to a sink of another name"
    )
