"""Blocks whose hooks get many records at once, and do what the blocks of single records do (sections 4.1, 4.2)."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple
from zlib import crc32

import millwheel as mw
from simulation.blocks.base import Block, numbered
from simulation.blocks.plain import FLAKINESS
from simulation.blocks.records import Item

__all__ = ["in_batches"]


class _Row(NamedTuple):
    """What a block reads of a record."""

    value: Item
    timestamp: int
    stream: str
    late: bool


class _Batched(Block, mw.BatchComputation[Item, int]):
    """Numbers the records of each key, in batches, and sometimes fails after the work for a record."""

    failing = 0.0

    def process_batch(self, ctx: mw.BatchContext[int], batch: mw.RecordBatch[Item]) -> None:
        """Number the records and forward them."""
        columns = zip(batch.values, batch.timestamps.tolist(), batch.late.tolist(), strict=True)
        made: list[Item] = []
        for place, (item, timestamp, late) in enumerate(columns):
            row: Any = _Row(item, timestamp, batch.stream, late)
            made.append(numbered(self, ctx.at(place), row))
            if self.failing and random.random() < self.failing:
                raise ValueError("this went wrong")
        for stream in self.outputs:
            ctx.produce(stream, made)


class _BatchedFlaky(_Batched):
    """Like :class:`_Batched`, but it fails for a share of the records. A failed call must have no effect."""

    failing = FLAKINESS


def in_batches(node: dict[str, Any]) -> Any:
    """The class of a plan's node that gets many records at once. None: its hook gets single ones.

    What else the plan says of the node decides, and no further chance: so the plans of seeds stay as they are.
    """
    if not node["strong"] or crc32(json.dumps(node, sort_keys=True).encode()) % 2:
        return None
    return {"count": _Batched, "flaky": _BatchedFlaky}.get(node["kind"])
