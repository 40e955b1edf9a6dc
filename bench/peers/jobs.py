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

__all__ = [
    "PROGRAMS", "BoundedRun", "Bytewax", "Flink", "Job", "Peer", "PeerJob", "PeerPrograms", "Started", "java_version",
    "program_environment", "started_by",
]  # fmt: skip

PROGRAMS: Final = Path(__file__).with_name("programs")


class PeerJob(msgspec.Struct, kw_only=True):
    """What the programs of each benchmark get.

    Attributes:
        source: Where the records are.
        target: Where the results go. No other run has it.
        out_of_order_ms: How much older than the newest record of its part a record may be.
        processes: How much runs side by side, in the system's own terms.
        commit_seconds: Seconds from one checkpoint to the next, for systems that make them.
        place: A folder for its data and logs.
        settings: More settings of the system.
    """

    source: str
    target: str
    out_of_order_ms: int
    processes: int
    commit_seconds: int
    place: str
    settings: dict[str, str] = {}


class Job(PeerJob, kw_only=True):
    """What a run of the count reads, writes and uses. ``source`` and ``target`` are topics.

    Attributes:
        broker: ``host:port``.
        window_ms: The size of the tumbling windows.
    """

    broker: str
    window_ms: int


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


class BoundedRun(Protocol):
    """A system that is ready for a job whose records come to an end. All of its processes are children of this one."""

    async def start(self) -> None:
        """Give it the job. The clock of the run begins with this call."""

    async def has_ended(self) -> bool:
        """Whether all results are written. RuntimeError with its last words if it has failed."""


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
class PeerPrograms:
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

    async def has_ended(self) -> bool:
        for process in self.processes:
            if process.exit_code not in (None, 0):
                self.check()
        return all(process.exit_code == 0 for process in self.processes)


@asynccontextmanager
async def started_by(make: Callable[[], list[ChildProcess]]) -> AsyncIterator[PeerPrograms]:
    """A system whose processes start with the job, and end with the block. ``make`` makes those of each start."""
    programs = PeerPrograms(make)
    try:
        yield programs
    finally:
        programs.kill()


def program_environment(job: PeerJob, more: Mapping[str, str]) -> dict[str, str]:
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
        program: The file that it runs.
        more: Settings in place of those here.
        kafka: Whether the program needs the connector to Kafka.
        mode: Where functions of Python run: in a ``process`` of their own, or in a ``thread`` of the JVM.
    """

    name: str
    program: Path
    more: Mapping[str, str]
    kafka: bool = True
    mode: str = "process"
    guarantee: str = "exactly once"

    def install(self) -> None:
        FLINK.install()
        if self.kafka:
            connector_jar()

    def versions(self) -> dict[str, str]:
        connector = {"connector": connector_jar().stem} if self.kafka else {}
        return {**FLINK.versions(), **connector, "java": java_version(_java())}

    def settings(self, job: PeerJob) -> dict[str, str]:
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
            "python.execution-mode": self.mode,
            "python.executable": str(FLINK.python),
            "python.client.executable": str(FLINK.python),
            **({"pipeline.jars": connector_jar().as_uri()} if self.kafka else {}),
            "io.tmp.dirs": str(Path(job.place) / "tmp"),
            **self.more,
        }

    @asynccontextmanager
    async def ready(self, job: PeerJob) -> AsyncIterator[PeerPrograms]:
        async with started_by(lambda: [self._process(job)]) as started:
            yield started

    def _process(self, job: PeerJob) -> ChildProcess:
        """The program, which goes on from the newest checkpoint if there is one."""
        place = Path(job.place)
        done = sorted(place.glob("checkpoints/*/chk-*/_metadata"), key=lambda one: one.stat().st_mtime_ns)
        resumed = {"execution.state-recovery.path": done[-1].parent.as_uri()} if done else {}
        given = msgspec.structs.replace(job, settings={**self.settings(job), **resumed})
        more = {"JVM_ARGS": "-Xmx2g", "FLINK_LOG_DIR": str(place)}
        if self.mode == "thread":
            # The interpreter within the JVM does not find the packages of its virtual environment by itself.
            more["PYTHONPATH"] = str(FLINK.packages)
        command = [str(FLINK.python), str(self.program)]
        return ChildProcess(command, place / "flink.log", program_environment(given, more))


@dataclass(frozen=True, slots=True)
class Bytewax:
    """Bytewax as processes that know each other, with recovery on. Its sink has no transactions.

    Attributes:
        program: The file with its dataflow, ``flow``.
    """

    program: Path = PROGRAMS / "bytewax_flow.py"
    name: str = "bytewax"
    guarantee: str = "at least once"

    def install(self) -> None:
        BYTEWAX.install()

    def versions(self) -> dict[str, str]:
        return BYTEWAX.versions()

    def settings(self, job: PeerJob) -> dict[str, str]:
        return {
            "processes": str(job.processes),
            "snapshot-interval": f"{job.commit_seconds} s",
            "backup-interval": "0 s",
        }

    @asynccontextmanager
    async def ready(self, job: PeerJob) -> AsyncIterator[PeerPrograms]:
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
            ChildProcess(self._command(job, recovery, number, addresses), place / f"bytewax-{number}.log", environment)
            for number in range(job.processes)
        ]
        async with started_by(lambda: processes) as started:
            yield started

    def _command(self, job: PeerJob, recovery: Path, number: int, addresses: list[str]) -> list[str]:
        several = ["-i", str(number), "-a", ";".join(addresses)] if len(addresses) > 1 else []
        kept = ["-r", str(recovery), "-s", str(job.commit_seconds), "-b", "0"]
        return [str(BYTEWAX.python), "-m", "bytewax.run", f"{self.program}:flow", *kept, *several]


def _java() -> str:
    home = os.environ.get("JAVA_HOME", "")
    return str(Path(home) / "bin" / "java") if home else "java"


def java_version(java: str) -> str:
    """What this runtime of Java says of itself."""
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr.splitlines()[0]
