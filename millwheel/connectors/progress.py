"""The progress of a sink's shard, as the other system keeps it: which batch is there, and which comes next. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.connectors.sink import SinkBatch, SinkShard

__all__ = ["ShardProgress", "follows", "with_batch", "without_batch"]


class ShardProgress(msgspec.Struct, frozen=True):
    """The newest batch of a shard. All batches before it are there."""

    run: int
    batch: int
    id: str


def with_batch(place: SinkShard, batch: SinkBatch[Any]) -> ShardProgress:
    """The progress of a shard that has the batch."""
    return ShardProgress(place.run, batch.number, batch.id)


def without_batch(place: SinkShard, batch: SinkBatch[Any]) -> ShardProgress:
    """The progress that a batch which is not the first one follows."""
    return ShardProgress(place.run, batch.number - 1, batch.after)


def follows(found: ShardProgress | None, place: SinkShard, batch: SinkBatch[Any]) -> bool:
    """Whether the batch comes next, by the chain of ids. The first batch of a run follows any older run.

    ``found``: the progress. None: there is none.
    """
    if batch.after:
        return found is not None and (found.run, found.id) == (place.run, batch.after)
    return found is None or found.run < place.run
