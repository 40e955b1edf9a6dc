"""Exactly once to files: a subscriber that stores the offset together with its results.

A file's name is the offset after its last record. So one rename stores both, the results and how far they go. What is
delivered again because its ACK was lost has a smaller offset, and is left out. One process writes into a directory. The
same works with a transaction of a database that has the offset in a row of its own.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

import millwheel as mw
from millwheel.client.subscription import Batch, Subscription

__all__ = ["Order", "exact_files", "export"]


class Order(msgspec.Struct, frozen=True):
    """Something is ordered."""

    order: int
    cents: int


exact_files = mw.Topology("exact-files")
exact_files.source("orders", Order).filter(lambda order: order.cents >= 1_000).named("large")


async def export(directory: Path, address: str, most: int = 10_000) -> None:
    """Write the stream into files of at most ``most`` lines of JSON, until it ends."""
    orders = Subscription(
        "exact-files/large", cursor="export", record_type=Order, address=address, window=most, until_end=True
    )
    async with orders as subscription:
        async for batch in subscription:
            await asyncio.to_thread(write, directory, batch)
            await subscription.ack(batch.next_offset)


def write(directory: Path, batch: Batch) -> None:
    """Write the records of a batch that no file has yet."""
    done = max((int(file.stem) for file in directory.glob("*.jsonl")), default=0)
    if batch.next_offset <= done:
        return
    part = directory / "part"
    with part.open("wb") as file:
        file.writelines(msgspec.json.encode(order) + b"\n" for offset, _, order in batch if offset >= done)
        file.flush()
        os.fsync(file.fileno())
    part.rename(directory / f"{batch.next_offset:020}.jsonl")
    held = os.open(directory, os.O_RDONLY)
    os.fsync(held)  # the new name is on disk, so the batch may be ACKed
    os.close(held)
