"""Spark as an injector: the sink's own protocol (:mod:`millwheel.injectors.batches`) in simulated time (5.2).

Invariant: each row of each batch is in the stream once (G1), also if processes die. All rows of a committed batch are
ACKed (G2). Who could break it: a task that ends before its rows are ACKed; ids that depend on the task, the
partition or the driver; a driver that commits before it publishes, or lets an older driver's tasks continue.

This module imitates Spark. A checkpoint has the rows of each batch that was begun, and the last batch that Spark has
committed. A driver that restarts continues after that batch: with the same rows, in the same or other partitions. A
task runs on an executor. Sometimes two copies of it run at once, and the first one to finish wins. The other copy is
killed or continues. Executors die, and their tasks are retried. A driver dies at any step, and its tasks continue
without it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from millwheel.client.injector import BatchOf
from millwheel.client.injector.errors import InjectorError
from millwheel.injectors.batches import (
    commit_batch,
    draw_sequencer,
    finish_task,
    full_stream_name,
    last_batch,
    open_publisher,
    open_task,
)
from millwheel.rpc.failures import RequestError
from simulation.clients import ADDRESS, ClientProgress, query_of
from simulation.plan import PlannedRecord, SourceReader
from simulation.process import Process
from simulation.world import Main, World

__all__ = ["EXECUTORS", "executor", "spark_driver"]

EXECUTORS: Final = ("e0", "e1")
_ROWS: Final = 6
"""Rows in a batch."""
_DELAY: Final = 500_000
"""The disorder of rows that are not late, in microseconds."""
_FAILURES: Final = 4
"""Failed attempts of one task after which the batch fails."""


@dataclass(frozen=True)
class _Sink:
    """The destination of rows, as in the sink's options."""

    stream: str
    process: str
    address: str = ADDRESS
    patience: float = 8.0


@dataclass
class _Task:
    """One partition of a batch, as the driver knows it."""

    rows: list[PlannedRecord]
    done: bool = False
    failures: int = 0
    running: list[tuple[Process, asyncio.Task[None]]] = field(default_factory=list)


def executor(progress: ClientProgress) -> Main:
    """A process on which drivers start tasks."""

    async def main(world: World, process: Process) -> None:
        await asyncio.Event().wait()

    return main


def spark_driver(progress: ClientProgress, which: SourceReader) -> Main:
    """Run a reader's query to its end, from its checkpoint."""
    name = (which.stream, which.process)

    async def main(world: World, process: Process) -> None:
        await progress.submitted.wait()
        driver = _Driver(world, progress, which, process)
        while name not in progress.finished and progress.over is None:
            try:
                await driver.run()
            except RequestError as error:
                world.history.note(f"the query has failed: {error}")
                if error.reason == "INJECTOR_FINISHED" and progress.read.get(name, 0) == len(which.inputs):
                    progress.finished.add(name)
            except (InjectorError, TimeoutError, _BatchFailedError) as error:
                world.history.note(f"the query has failed: {type(error).__name__} {error}")
            await asyncio.sleep(3.0 if world.plan.ending else 0.5)

    return main


class _BatchFailedError(Exception):
    """A task has failed too often."""


class _Driver:
    """One incarnation of a driver."""

    def __init__(self, world: World, progress: ClientProgress, which: SourceReader, process: Process) -> None:
        self._world = world
        self._progress = progress
        self._which = which
        self._process = process
        self._chance = Random(f"spark {world.plan.seed} {process}")
        self._sink = _Sink(which.stream, which.process)
        self._query = f"{query_of(which)}/{which.stream}"

    async def run(self) -> None:
        """Run the batches after the last one that is committed in the checkpoint."""
        inputs, name = self._which.inputs, (self._which.stream, self._which.process)
        count = -(-len(inputs) // _ROWS)
        pace = self._world.plan.span / count / 2
        while (batch := self._progress.committed_batches.get(name, -1) + 1) < count:
            rows = inputs[batch * _ROWS : (batch + 1) * _ROWS]
            await self._step("plan")
            self._sink = replace(self._sink, stream=await full_stream_name(self._sink))
            sequencer = await draw_sequencer(self._sink)
            newest = await self._run_tasks(rows, BatchOf(self._query, batch), sequencer)
            await self._step("publish", 0.5)  # then another driver sends rows that are ACKed
            await commit_batch(self._sink, BatchOf(self._query, batch), None if newest is None else newest - _DELAY)
            self._progress.read[name] = min(len(inputs), (batch + 1) * _ROWS)
            await self._step("write the commit", 0.4)
            self._progress.committed_batches[name] = batch
            await asyncio.sleep(self._chance.uniform(0.0, 2.0 * pace))
        await self._step("finish")
        async with open_publisher(self._sink) as injector:
            await injector.finish()
        self._progress.finished.add(name)

    async def _step(self, what: str, likely: float = 0.1) -> None:
        """A moment in which the driver may be killed, as often as the plan says."""
        if self._which.kills > 0 and self._chance.random() < likely:
            self._which.kills -= 1
            self._world.history.note(f"the driver is killed before it can {what}")
            self._world.later(0.0, self._world.kill, self._process.name)
            self._world.later(self._chance.uniform(0.1, 2.0), self._again, self._process.name)
            await asyncio.sleep(1e9)

    def _again(self, name: str) -> None:
        if not self._world.processes[name].alive:
            self._world.start(name)

    # Tasks.

    async def _run_tasks(self, rows: list[PlannedRecord], batch: BatchOf, sequencer: int) -> int | None:
        """Run the tasks of all partitions; returns their newest timestamp, or None if the batch was committed
        already."""
        shuffled = self._chance.sample(rows, len(rows))
        parts = self._chance.choice((1, 2, 3))
        tasks = [_Task(shuffled[part::parts]) for part in range(parts) if shuffled[part::parts]]
        newest: list[int] = []
        while not all(task.done for task in tasks):
            for task in tasks:
                task.running = [(host, one) for host, one in task.running if host.alive and not one.done()]
                copies = 2 if self._chance.random() < 0.15 else 1
                while not task.done and len(task.running) < copies:
                    self._start(task, batch, sequencer, newest)
                if task.failures >= _FAILURES:
                    raise _BatchFailedError(f"batch {batch.batch}")
                self._end_copies(task)
            await asyncio.sleep(0.1)
        self._kill_executor()
        return max(newest, default=None)

    def _start(self, task: _Task, batch: BatchOf, sequencer: int, newest: list[int]) -> None:
        """Start a copy of a task on a running executor; if there is none, restart one."""
        hosts = [self._world.processes[name] for name in EXECUTORS]
        alive = [host for host in hosts if host.alive]
        if not alive:
            alive = [self._world.start(EXECUTORS[0])]
        host = self._chance.choice(alive)
        if task.running:
            self._world.history.note(f"a second copy of a task of batch {batch.batch} runs at {host}")
        work = self._attempt(task, batch, sequencer, newest)
        task.running.append((host, host.spawn(work, f"task of {self._query}, batch {batch.batch}")))

    def _end_copies(self, task: _Task) -> None:
        """Kill some of the other copies of a task that has finished. The rest continues."""
        for _, one in task.running if task.done else ():
            if not one.done() and self._chance.random() < 0.5:
                one.cancel()

    def _kill_executor(self) -> None:
        """Sometimes kill an executor, and restart it later."""
        name = self._chance.choice(EXECUTORS)
        if self._chance.random() < 0.1:
            self._world.kill(name)
            self._world.later(self._chance.uniform(0.1, 2.0), self._again, name)

    async def _attempt(self, task: _Task, batch: BatchOf, sequencer: int, newest: list[int]) -> None:
        """Run one copy of a task: what the sink does with a partition."""
        try:
            found = await self._write(self._chance.sample(task.rows, len(task.rows)), batch, sequencer)
        except (RequestError, InjectorError, TimeoutError) as error:
            self._world.history.note(f"a task of batch {batch.batch} has failed: {type(error).__name__} {error}")
            task.failures += 1
            return
        if not task.done:
            task.done = True
            newest += [] if found is None else [found]

    async def _write(self, rows: list[PlannedRecord], batch: BatchOf, sequencer: int) -> int | None:
        if await last_batch(self._sink, batch.query) >= batch.batch:
            self._world.history.note(f"batch {batch.batch} is in already")
            return None
        injector = await open_task(self._sink, sequencer)
        try:
            at = 0
            while at < len(rows):
                some = rows[at : at + self._chance.choice((1, 2, 4))]
                at += len(some)
                for one in some:
                    self._progress.first_sent.setdefault(one.number, self._world.loop.time())
                values = [{"ids": [one.number], "a": one.a, "b": one.b, "tainted": one.late} for one in some]
                ids = [str(one.number) for one in some]
                await injector.send_many(values, [one.timestamp for one in some], ids=ids, batch=batch)
                await asyncio.sleep(self._chance.uniform(0.0, 0.2))
            await finish_task(injector)
        finally:
            await injector.close()
        return max(one.timestamp for one in rows)
