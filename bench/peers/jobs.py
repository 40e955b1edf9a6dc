"""What one run of a system gets, and how the other systems are started with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import msgspec

from bench.peers.environments import BYTEWAX, FLINK, connector_jar
from deploy.local.child import ChildProcess, free_ports

__all__ = ["Bytewax", "Flink", "Job", "Peer", "Started", "java_version", "program_environment", "started_by"]

_PROGRAMS: Final = Path(__file__).with_name("programs")


class Job(msgspec.Struct):
    """What a run reads, writes and uses.

    Attributes:
        broker: ``host:port``.
        source: The topic with the records.
        target: The topic for the results, which no other run has.
        window_ms: The size of the tumbling windows.
        out_of_order_ms: How much older than the newest record of its partition a record may be.
        processes: How much runs side by side, in the system's own terms.
        commit_seconds: Seconds from one checkpoint to the next, for systems that make them.
        place: A folder for its data and logs.
        settings: More settings of the system.
    """

    broker: str
    source: str
    target: str
    window_ms: int
    out_of_order_ms: int
    processes: int
    commit_seconds: int
    place: str
    settings: dict[str, str] = {}


class Started(Protocol):
    """A system that is ready for the job. All of its processes are children of this one."""

    async def start(self) -> None:
        """Give it the job. The clock of the run begins with this call."""

    def check(self) -> None:
        """RuntimeError with its last words if it has ended."""

    async def crash(self) -> None:
        """SIGKILL all processes that have records."""

    async def restart(self) -> None:
        """Start it again after a crash, as its documentation says. Nothing, if its own supervisor does that."""


class Peer(Protocol):
    """A system that is measured."""

    @property
    def name(self) -> str:
        """For people and for ``--only``."""

    @property
    def guarantee(self) -> str:
        """What it promises about a record, from topic to topic."""

    def install(self) -> None:
        """See to it that it can run. InstallError says why it cannot."""

    def versions(self) -> dict[str, str]:
        """Of what it is made of."""

    def settings(self, job: Job) -> dict[str, str]:
        """What was set, other than by default."""

    def ready(self, job: Job) -> AbstractAsyncContextManager[Started]:
        """A block in which it is ready. Its processes end with the block."""


@dataclass(slots=True)
class _Programs:
    """The processes of a system that is started with its job. ``make`` makes those of each start."""

    make: Callable[[], list[ChildProcess]]
    processes: list[ChildProcess] = field(default_factory=list)

    async def start(self) -> None:
        self.processes = self.make()
        for process in self.processes:
            process.start()

    async def crash(self) -> None:
        self.kill()

    async def restart(self) -> None:
        await self.start()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def check(self) -> None:
        for process in self.processes:
            if not process.is_running:
                raise RuntimeError(f"it has ended (exit code {process.exit_code}): {process.last_lines(15)}")


@asynccontextmanager
async def started_by(make: Callable[[], list[ChildProcess]]) -> AsyncIterator[Started]:
    """A system whose processes start with the job, and end with the block. ``make`` makes those of each start."""
    programs = _Programs(make)
    try:
        yield programs
    finally:
        programs.kill()


def program_environment(job: Job, more: Mapping[str, str]) -> dict[str, str]:
    """Of a program of another system. It does not see this checkout."""
    temporary = Path(job.place) / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    encoded = msgspec.json.encode(job).decode()
    return {"PYTHONPATH": "", "PYTHONSAFEPATH": "", "TMPDIR": str(temporary), "PEER_JOB": encoded, **more}


@dataclass(frozen=True, slots=True)
class Flink:
    """PyFlink with its own mini cluster, in one JVM, as its documentation runs a program on one machine.

    Attributes:
        name: Of this form.
        program: The file in bench/peers/programs.
        more: Settings in place of those here.
    """

    name: str
    program: str
    more: Mapping[str, str]
    guarantee: str = "exactly once"

    def install(self) -> None:
        FLINK.install()
        connector_jar()

    def versions(self) -> dict[str, str]:
        return {**FLINK.versions(), "connector": connector_jar().stem, "java": java_version(_java())}

    def settings(self, job: Job) -> dict[str, str]:
        place = Path(job.place).as_uri()
        return {
            "parallelism.default": str(job.processes),
            "taskmanager.numberOfTaskSlots": str(job.processes),
            "execution.checkpointing.interval": f"{job.commit_seconds} s",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.dir": f"{place}/checkpoints",
            "state.backend.type": "hashmap",
            # Its documentation advises it for programs that change no object which they gave away.
            "pipeline.object-reuse": "true",
            "python.execution-mode": "process",
            "python.executable": str(FLINK.python),
            "python.client.executable": str(FLINK.python),
            "pipeline.jars": connector_jar().as_uri(),
            "io.tmp.dirs": str(Path(job.place) / "tmp"),
            **self.more,
        }

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        async with started_by(lambda: [self._process(job)]) as started:
            yield started

    def _process(self, job: Job) -> ChildProcess:
        """The program, which goes on from the newest checkpoint if there is one."""
        place = Path(job.place)
        done = sorted(place.glob("checkpoints/*/chk-*/_metadata"), key=lambda one: one.stat().st_mtime_ns)
        resumed = {"execution.state-recovery.path": done[-1].parent.as_uri()} if done else {}
        given = msgspec.structs.replace(job, settings={**self.settings(job), **resumed})
        more = {"JVM_ARGS": "-Xmx2g", "FLINK_LOG_DIR": str(place)}
        command = [str(FLINK.python), str(_PROGRAMS / self.program)]
        return ChildProcess(command, place / "flink.log", program_environment(given, more))


@dataclass(frozen=True, slots=True)
class Bytewax:
    """Bytewax as processes that know each other, with recovery on. Its sink has no transactions."""

    name: str = "bytewax"
    guarantee: str = "at least once"

    def install(self) -> None:
        BYTEWAX.install()

    def versions(self) -> dict[str, str]:
        return BYTEWAX.versions()

    def settings(self, job: Job) -> dict[str, str]:
        return {
            "processes": str(job.processes),
            "snapshot-interval": f"{job.commit_seconds} s",
            "backup-interval": "0 s",
        }

    @asynccontextmanager
    async def ready(self, job: Job) -> AsyncIterator[Started]:
        place = Path(job.place)
        recovery = place / "recovery"
        recovery.mkdir(parents=True)
        environment = program_environment(job, {})
        partitions = ChildProcess(
            [str(BYTEWAX.python), "-m", "bytewax.recovery", str(recovery), str(job.processes)],
            place / "recovery.log",
            environment,
        )
        partitions.start()
        try:
            if await asyncio.to_thread(partitions.wait, 60.0) != 0:
                raise RuntimeError(f"its recovery store cannot be made: {partitions.last_lines()}")
        finally:
            partitions.kill()
        addresses = [f"127.0.0.1:{port}" for port in free_ports(job.processes)]
        processes = [
            ChildProcess(_bytewax(job, recovery, number, addresses), place / f"bytewax-{number}.log", environment)
            for number in range(job.processes)
        ]
        async with started_by(lambda: processes) as started:
            yield started


def _bytewax(job: Job, recovery: Path, number: int, addresses: list[str]) -> list[str]:
    several = ["-i", str(number), "-a", ";".join(addresses)] if len(addresses) > 1 else []
    flow = f"{_PROGRAMS / 'bytewax_flow.py'}:flow"
    kept = ["-r", str(recovery), "-s", str(job.commit_seconds), "-b", "0"]
    return [str(BYTEWAX.python), "-m", "bytewax.run", flow, *kept, *several]


def _java() -> str:
    home = os.environ.get("JAVA_HOME", "")
    return str(Path(home) / "bin" / "java") if home else "java"


def java_version(java: str) -> str:
    """What this runtime of Java says of itself."""
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
