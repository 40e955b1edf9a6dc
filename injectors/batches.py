"""The protocol of an injector that works in numbered batches, as Spark does: each batch exactly once (section 5.2).

A driver draws a sequencer for the tasks of one batch. Each task asks whether the batch is in, sends its rows if not,
and waits until every consumer has ACKed each of them. When all tasks are done, the driver publishes the watermark and
commits the batch. Any of these steps may fail, or happen twice, or happen in several copies of one task at a time.
"""

from __future__ import annotations

from typing import Protocol

from millwheel.client.control import ControlClient
from millwheel.client.injector import BatchOf, Injector, InjectorSettings

__all__ = [
    "BATCH_SOURCE",
    "Target",
    "commit_batch",
    "draw_sequencer",
    "finish_task",
    "last_batch",
    "open_publisher",
    "open_task",
]

BATCH_SOURCE = "spark"
"""Within what the ids of rows are unique, beside their stream, query and batch: one and the same, so that a replay
under another process, or from another task, has the ids that it had."""


class Target(Protocol):
    """Where the batches go."""

    @property
    def address(self) -> str:
        """The masters' addresses."""

    @property
    def stream(self) -> str:
        """The stream that takes the rows."""

    @property
    def process(self) -> str:
        """The name among the stream's injectors."""

    @property
    def patience(self) -> float:
        """For how many seconds a cluster that cannot be reached is looked for."""


async def draw_sequencer(target: Target) -> int:
    """Draw a sequencer for the tasks of one batch, before the first of them begins.

    From now on the process takes part in the stream's watermark, and what an earlier driver's tasks still send is
    refused.
    """
    async with ControlClient(target.address, patience=target.patience) as client:
        return (await client.open_injector(target.stream, target.process)).sequencer


async def last_batch(target: Target, query: str) -> int:
    """The last batch of a query that is wholly in, with its watermark published; -1: none."""
    async with ControlClient(target.address, patience=target.patience) as client:
        return await client.batch_cursor(query)


async def open_task(target: Target, sequencer: int) -> Injector:
    """An injector for one task, which sends on behalf of its driver."""
    injector = Injector(
        target.address,
        target.stream,
        process=target.process,
        source=BATCH_SOURCE,
        sequencer=sequencer,
        # The task has looked at the times. It fails for a row that a consumer cannot key, and names the row.
        settings=InjectorSettings(patience=target.patience, any_timestamp=True, strict_keys=True),
    )
    await injector.open()
    return injector


async def finish_task(injector: Injector) -> None:
    """Wait until every consumer has ACKed every row of a task: only then the task may succeed."""
    await injector.flush()


def open_publisher(target: Target) -> Injector:
    """An injector for the driver, to publish watermarks: a context manager."""
    settings = InjectorSettings(patience=target.patience, any_timestamp=True)  # the tasks have looked at the times
    return Injector(target.address, target.stream, process=target.process, source=BATCH_SOURCE, settings=settings)


async def commit_batch(target: Target, batch: BatchOf, watermark: int | None) -> None:
    """Every record of ``batch`` is ACKed: publish the watermark (None: there is none), then commit the batch.

    In that order, so that a committed batch's watermark is always published: a replay of it reads no row, and could not
    say it. A watermark published twice is the same.
    """
    if watermark is not None:
        async with open_publisher(target) as injector:
            await injector.advance(watermark)
    async with ControlClient(target.address, patience=target.patience) as client:
        await client.commit_batch(batch.query, batch.batch)
