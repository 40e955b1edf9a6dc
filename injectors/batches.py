"""The protocol of an injector that sends numbered batches, such as Spark: each batch exactly once (section 5.2).

1. The driver allocates a sequencer for the tasks of one batch.
2. Each task checks whether the batch is committed. If not, it sends its rows, and waits until every consumer has ACKed
   each of them.
3. When all tasks are done, the driver publishes the watermark and commits the batch.

Any step may fail or be repeated, or run in several copies of one task at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from millwheel.client.control import ControlClient
from millwheel.client.injector import BatchOf, Injector, InjectorSettings

__all__ = [
    "BATCH_SOURCE",
    "Target",
    "commit_batch",
    "draw_sequencer",
    "finish_task",
    "full_stream_name",
    "last_batch",
    "open_publisher",
    "open_task",
]

BATCH_SOURCE = "spark"
"""The ``source`` of all rows. A row's id is unique within source, stream, query and batch.

It is a constant, so that a row has the same id in a replay by another process or another task."""


class Target(Protocol):
    """The destination of the batches."""

    @property
    def address(self) -> str:
        """The addresses of the masters."""

    @property
    def stream(self) -> str:
        """The stream of the rows."""

    @property
    def process(self) -> str:
        """The name of the process among the stream's injectors."""

    @property
    def patience(self) -> float:
        """Seconds to wait for a cluster that cannot be reached."""


async def full_stream_name(target: Target) -> str:
    """The full name of the target's stream. Rows have their ids within it, whether the option is short or full."""
    async with ControlClient(target.address, patience=target.patience) as client:
        return await client.full_stream_name(target.stream)


async def draw_sequencer(target: Target) -> int:
    """Allocate a sequencer for the tasks of one batch, before the first task begins.

    From now on the process takes part in the stream's low watermark. Rows from an earlier driver's tasks are refused.
    """
    async with ControlClient(target.address, patience=target.patience) as client:
        return (await client.open_injector(target.stream, target.process)).sequencer


async def last_batch(target: Target, query: str) -> int:
    """The last committed batch of a query: complete, with its watermark published. -1 if there is none."""
    async with ControlClient(target.address, patience=target.patience) as client:
        return await client.batch_cursor(query)


async def open_task(target: Target, sequencer: int, columns: Iterable[str] = ()) -> Injector:
    """Open an injector for one task, which sends on behalf of its driver.

    ``columns``: the columns that the target's options name. They may be no fields of the stream's type.
    """
    injector = Injector(
        target.stream,
        address=target.address,
        process=target.process,
        source=BATCH_SOURCE,
        sequencer=sequencer,
        # The task itself checks timestamps. If a consumer has no key for a row, the task fails and names the row.
        settings=InjectorSettings(
            patience=target.patience, any_timestamp=True, strict_keys=True, extra_columns=frozenset(columns)
        ),
    )
    await injector.open()
    return injector


async def finish_task(injector: Injector) -> None:
    """Wait until every consumer has ACKed every row of a task. Only then may the task succeed."""
    await injector.flush()


def open_publisher(target: Target) -> Injector:
    """An injector for the driver that publishes watermarks. Use it with ``async with``."""
    settings = InjectorSettings(patience=target.patience, any_timestamp=True)  # the tasks check timestamps
    return Injector(
        target.stream, address=target.address, process=target.process, source=BATCH_SOURCE, settings=settings
    )


async def commit_batch(target: Target, batch: BatchOf, watermark: int | None) -> None:
    """Publish the watermark, then commit the batch. Every record of ``batch`` is ACKed.

    Invariant: the watermark of a committed batch is published. So the commit comes second: a replay of a committed
    batch reads no row, and could not compute the watermark. Publishing a watermark twice is harmless.

    Args:
        target: The destination.
        batch: The batch.
        watermark: The watermark to publish, in microseconds. None publishes nothing.
    """
    if watermark is not None:
        async with open_publisher(target) as injector:
            await injector.advance(watermark)
    async with ControlClient(target.address, patience=target.patience) as client:
        await client.commit_batch(batch.query, batch.batch)
