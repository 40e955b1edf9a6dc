"""The progress of a sink's shard, as the other system keeps it: which batch is there, and which comes next. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.connectors.sink import SinkBatch, SinkShard

__all__ = ["ShardProgress", "follows", "is_over", "with_batch", "without_batch"]


class ShardProgress(msgspec.Struct, frozen=True):
    """The newest batch of a shard. All batches before it are there."""

    run: int
    batch: int
    id: str


def with_batch(place: SinkShard, batch: SinkBatch[Any]) -> ShardProgress:
    """The progress of a shard that has the batch."""
    return ShardProgress(place.run, batch.number, batch.id)


def without_batch(place: SinkShard, batch: SinkBatch[Any]) -> ShardProgress:
    """A progress that the batch follows, for a person to set. The first batch of a run follows an older run alone."""
    return ShardProgress(place.run if batch.after else place.run - 1, batch.number - 1, batch.after)


def follows(found: ShardProgress | None, place: SinkShard, batch: SinkBatch[Any]) -> bool:
    """Whether the batch comes next, by the chain of ids. The first batch of a run follows any older run.

    ``found``: the progress. None: there is none.
    """
    if batch.after:
        return found is not None and (found.run, found.id) == (place.run, batch.after)
    return found is None or found.run < place.run


def is_over(place: SinkShard, go_on: str) -> str:
    """What the error says where a later run writes the shard. ``go_on`` lets this one go on, if a person does it."""
    return (
        f"a later topology of the same name writes {place.sink}, shard {place.shard}: this one is over. If that one "
        f"was deleted, such as a fork, let this one go on: {go_on}. What it has written stays, and its newest batch "
        "may come twice"
    )
