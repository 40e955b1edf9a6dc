"""File injectors in simulated runs: `millwheel inject file`, killed at any step and run again (section 5.2).

Invariant: a line is one record (G1). That holds however often its file is read, by any number of incarnations of the
process. It holds with or without a checkpoint, and while the file grows. What an incarnation has ACKed is in the
cluster (G2). The end of the last run is the end of the stream (G8). Who could break it: an injector that names a file
or a line differently in another incarnation; one that takes half a line for a line; one whose checkpoint is ahead of
the ACKs.

The files are real. The simulation performs at once what the product does with them in threads, with a pause before and
after. The process may be killed in such a pause, or when records are handed over. It is often killed right after a
checkpoint, while records are not ACKed. Then the checkpoint decides whether they arrive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.errors import InjectorError
from millwheel.connectors.files.parsing import TimestampField, TimeUnit
from millwheel.injectors.files import FileInjector, FileSettings, SourceError
from millwheel.injectors.identity import partition_name
from millwheel.model.time import Duration
from millwheel.rpc.failures import RequestError
from simulation.clients import ADDRESS, ClientProgress
from simulation.plan import SourceReader
from simulation.process import PROCESS, Process
from simulation.world import Main, World

__all__ = ["file_reader", "file_writer", "files_within"]

_READ_BYTES: Final = 150
"""Bytes read at a time: so few that a read holds one or two lines."""
_DISORDER: Final = Duration(500_000)
"""The disorder of a plan's records that are not late: the largest distance from the promised time."""


@contextmanager
def files_within(world: World) -> Iterator[None]:
    """File injectors run without threads, and name files by paths below the run's directory."""

    async def to_thread(call: Callable[..., Any], /, *arguments: Any) -> Any:
        module = getattr(call, "__module__", None) or type(call).__module__
        if not module.startswith(("millwheel.injectors", "pathlib")):
            raise RuntimeError(f"a thread in a simulation: {call}")
        await _step(world)
        result = call(*arguments)
        await _step(world)
        return result

    def named(path: str, lines: Any) -> str:
        return partition_name(str(Path(path).relative_to(world.directory.resolve())), lines)

    with (
        patch("asyncio.to_thread", to_thread),
        patch("millwheel.injectors.files.partition_name", named),
        patch("millwheel.injectors.files.READ_BYTES", _READ_BYTES),
    ):
        yield


async def _step(world: World) -> None:
    """A moment in which the process may be killed, as often as the plan says."""
    process = PROCESS.get()
    assert process is not None
    which = next((one for one in world.plan.readers if f"{one.stream}-{one.process}" == process.name), None)
    if which is None:
        return
    chance = world.file_chance
    likely = 0.1 if process in world.sending else 0.01  # a kill before the first record shows little
    if chance.random() < likely and _dies(world, which, "is killed at a step of its own"):
        await asyncio.sleep(1e9)
    pace = world.plan.span / len(which.inputs) / 2 if world.loop.time() < world.plan.span else 0.001
    await asyncio.sleep(chance.uniform(0.0, pace))


def _dies(world: World, which: SourceReader, how: str) -> bool:
    """Kill the process and start it again later, if the plan has another kill for it. Returns whether it does so.

    The kill is scheduled. So the current step is the process's last one.
    """
    name = f"{which.stream}-{which.process}"
    if which.kills <= 0:
        return False
    which.kills -= 1
    world.history.note(how)
    world.later(0.0, world.kill, name)
    world.later(world.file_chance.uniform(0.1, 2.0), _restart, world, name)
    return True


def _restart(world: World, name: str) -> None:
    if not world.processes[name].alive:
        world.start(name)


def _directory(world: World, which: SourceReader) -> Path:
    return world.directory / f"files-{world.plan.seed}" / f"{which.stream}-{which.process}"


def file_writer(progress: ClientProgress, which: SourceReader) -> Main:
    """Write the reader's files: at once, or in pieces that may end in the middle of a line."""

    async def main(world: World, process: Process) -> None:
        directory, chance = _directory(world, which), Random(f"writer {world.plan.seed} {process.name}")
        directory.mkdir(parents=True, exist_ok=True)
        written = {path.name: path.stat().st_size for path in directory.glob("*.jsonl")}
        for number in range(which.files):
            lines = "".join(_line(one) for one in which.inputs[number :: which.files]).encode()
            name, at = f"{number}.jsonl", written.get(f"{number}.jsonl", 0)
            while at < len(lines):
                size = chance.randint(1, 400) if which.grows else len(lines)
                with (directory / name).open("ab") as file:
                    file.write(lines[at : at + size])
                at += size
                if which.grows:
                    await asyncio.sleep(chance.uniform(0.0, 0.6))
        progress.written.add((which.stream, which.process))

    return main


def _line(one: Any) -> str:
    record = {"ids": [one.number], "a": one.a, "b": one.b, "tainted": True, "at": one.timestamp}
    return json.dumps(record) + "\n"


class _NotedInjector(Injector):
    """Records when each record is sent for the first time."""

    world: World
    progress: ClientProgress
    life: Process
    limit: asyncio.Timeout | None = None
    """The time limit of a tail, which begins with its first record."""

    async def send_many(self, values: Any, timestamps: Any, **more: Any) -> None:
        """See :class:`Injector`."""
        for value in values:
            self.progress.first_sent.setdefault(value["ids"][0], self.world.loop.time())
        await super().send_many(values, timestamps, **more)
        self.world.sending.add(self.life)
        if self.limit is not None:
            self.limit.reschedule(self.world.loop.time() + self.world.file_chance.uniform(0.1, self.world.plan.span))
            self.limit = None
        if self.world.file_chance.random() < 0.5:  # otherwise a checkpoint may follow before the ACKs
            await _step(self.world)


class _KilledFileInjector(FileInjector):
    """May be killed when it has written a checkpoint, and records that it has sent are not ACKed."""

    world: World
    which: SourceReader

    def _save_checkpoint(self, *, at_once: bool = False) -> None:
        before = self._saved
        super()._save_checkpoint(at_once=at_once)
        if self._saved != before and self._injector.unacked and self.world.file_chance.random() < 0.7:
            _dies(self.world, self.which, "is killed after its checkpoint, with records un-ACKed")


def file_reader(progress: ClientProgress, which: SourceReader) -> Main:
    """Inject the files: first the planned number of times without an end or as a tail, then to the end."""
    name = (which.stream, which.process)

    async def main(world: World, process: Process) -> None:
        await progress.there()
        while name not in progress.finished and progress.over is None:
            last = progress.runs[name] >= which.runs and name in progress.written
            try:
                await _run(world, process, progress, which, last=last)
                progress.runs[name] += 1
                if last:
                    _done(progress, which)
            except RequestError as error:
                world.history.note(f"starts again: {error}")
                if error.reason == "INJECTOR_FINISHED":
                    _done(progress, which)
            except SourceError as error:
                world.violated(f"{which.stream}/{which.process} refuses its own file: {error} (G1)")
            except (InjectorError, TimeoutError) as error:
                world.history.note(f"starts again: {type(error).__name__} {error}")
            await asyncio.sleep(3.0 if world.plan.ending else 0.5)

    return main


def _done(progress: ClientProgress, which: SourceReader) -> None:
    name = which.stream, which.process
    progress.finished.add(name)
    progress.read[name] = len(which.inputs)


async def _run(world: World, process: Process, progress: ClientProgress, which: SourceReader, *, last: bool) -> None:
    directory = _directory(world, which)
    tail = which.grows and not last
    settings = FileSettings(
        directory,
        "*.jsonl",
        timestamp=TimestampField("at", TimeUnit.MICROSECONDS),
        disorder=_DISORDER,
        tail=tail,
        finish=last,
        checkpoint=directory / "checkpoint" if which.checkpoint else None,
    )
    injector = _NotedInjector(
        which.stream, address=ADDRESS, process=which.process, settings=InjectorSettings(check_at_worker=True)
    )
    injector.world, injector.progress, injector.life = world, progress, process
    async with injector:
        files = _KilledFileInjector(injector, settings)
        files.world, files.which = world, which
        if tail:
            try:
                async with asyncio.timeout(world.plan.span) as injector.limit:
                    await files.run()
            except TimeoutError:
                world.history.note("the tail is ended")
        else:
            await files.run()
    world.history.note(f"{files.records} records of files were handed over{', to the end' if last else ''}")
