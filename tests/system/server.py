"""``millwheel`` as processes: commands, and servers that tests kill."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

from deploy.local.child import free_ports
from tests.patience import patience
from tests.shown import show_if_it_fails
from tests.system import forking

ROOT = Path(__file__).parents[2]
MAIN = "from millwheel.cli.main import main; main()"
WAIT = ("--wait", f"{patience(20):g}")
"""Has a command return when the topology has changed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The output and exit code of a command."""

    code: int
    out: str
    err: str


def _environment(address: str = "") -> dict[str, str]:
    return {**os.environ, "MILLWHEEL_ADDRESS": address, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}


async def run_cli(
    address: str,
    *arguments: str,
    timeout: float = patience(30),
    typed: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
    new: bool = False,
) -> Finished:
    """Run a ``millwheel`` command to its end, with ``typed`` on stdin. A traceback in its output is a failure.

    ``variables``: more of its environment. ``new``: in a new process, and not in a fork of one that has loaded the
    package.
    """
    environment = {**_environment(address), **variables}
    if not new and forking.fits(environment):
        finished = Finished(*await forking.run(arguments, environment, typed.encode(), timeout))
    else:
        finished = await _run_new(arguments, environment, typed.encode(), timeout)
    assert "Traceback" not in finished.err, finished.err
    return finished


async def _run_new(arguments: Sequence[str], environment: Mapping[str, str], typed: bytes, timeout: float) -> Finished:
    command, pipe = [sys.executable, "-c", MAIN, *arguments], asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
    try:
        out, err = await asyncio.wait_for(process.communicate(typed), timeout)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Finished(process.returncode or 0, out.decode(), err.decode())


class RunningCommand:
    """A command that runs until it is stopped. It can be started any number of times.

    Use it as ``async with``: the block ends its processes.
    """

    def __init__(
        self, log: Path, command: Sequence[str], environment: Mapping[str, str] | None = None, *, piped: bool = False
    ) -> None:
        """``log``: the file for the output of all its processes. ``piped``: stdout goes to a pipe instead."""
        self.log = log
        self.title = f"the end of {log}"
        self.over = False
        self._end = ""
        self._piped = piped
        self._command = command
        self._environment = environment
        self._process: asyncio.subprocess.Process | forking.ForkedProcess | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end = self._seen()
        self.over = True
        await self.kill()

    @property
    def process(self) -> asyncio.subprocess.Process | forking.ForkedProcess:
        """The running process."""
        assert self._process is not None
        return self._process

    async def spawn(self) -> None:
        """Start a process, and return before it is ready."""
        show_if_it_fails(self)
        with self.log.open("ab") as log:
            out, none = asyncio.subprocess.PIPE if self._piped else log, asyncio.subprocess.DEVNULL
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=none, stdout=out, stderr=log, env=self._environment, cwd=ROOT
            )

    async def start(self) -> None:
        """Begin a life."""
        await self.spawn()

    async def ended(self, within: float = patience(20)) -> int:
        """The exit code of the process, once it has ended and its pipe is empty."""
        async with self._limited(within, "it has not ended"):
            if self.process.stdout is not None:
                await self.process.stdout.read()
            return await self.process.wait()

    async def printed(self, within: float) -> str:
        """The next line on its stdout, which is piped. Empty if it has ended."""
        assert self.process.stdout is not None
        async with self._limited(within, "it has not written a line"):
            return (await self.process.stdout.readline()).decode().strip()

    @asynccontextmanager
    async def _limited(self, within: float, otherwise: str) -> AsyncIterator[None]:
        """TimeoutError, with the end of the log, if the block takes too long."""
        try:
            async with asyncio.timeout(within):
                yield
        except TimeoutError as error:
            raise TimeoutError(f"{otherwise} within {within:g} s; its log:\n{self.tail()}") from error

    async def kill(self) -> None:
        """Send SIGKILL if it runs. The process loses its memory, and the disk keeps its writes."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self.ended()

    async def stop(self) -> int:
        """Send SIGTERM. Returns the exit code."""
        self.process.terminate()
        return await self.ended(patience(10))

    def tail(self, size: int = 4_000) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def described(self) -> str:
        """How it stands, or stood when its block ended, and the end of its log: for a test that fails."""
        return f"{self._end if self.over else self._seen()}\n{self.tail(20_000)}"

    def _seen(self) -> str:
        code = None if self._process is None else self._process.returncode
        return "it runs" if code is None else f"it has ended with {code}"


class Server(RunningCommand):
    """``millwheel server start-dev`` on one port and one database."""

    def __init__(
        self,
        db: Path,
        log: Path,
        *,
        port: int = 0,
        intervals: int = 1,
        wrapper: Sequence[str] = (),
        options: Sequence[str] = (),
        code: str = MAIN,
    ) -> None:
        """``wrapper``: a command that runs the server, such as strace. ``options``: more options of start-dev.

        ``code``: another program that runs the command line.
        """
        self.db = db
        self.port = port or free_ports(1)[0]
        self.address = f"127.0.0.1:{self.port}"
        settings = ["--port", str(self.port), "--db", str(db), "--intervals", str(intervals), "--log-level", "info"]
        self._arguments = ["server", "start-dev", *settings, *options]
        self._own_environment = _environment()
        self._fork = code == MAIN and not wrapper and forking.fits(self._own_environment)
        command = [*wrapper, sys.executable, "-c", code, *self._arguments]
        super().__init__(log, command, self._own_environment, piped=True)

    async def spawn(self) -> None:
        """Start a process, and return before it is ready. The first is a fork of one that has loaded the package."""
        if not self._fork:
            await super().spawn()
            return
        show_if_it_fails(self)
        self._fork = False
        with self.log.open("ab") as log:
            self._process = await forking.start(self._arguments, self._own_environment, ROOT, None, log)

    async def ready(self, timeout: float = patience(60)) -> None:
        """Return when it logs that it is ready. AssertionError with the end of its log if it ends before."""
        line = await self.printed(timeout)
        assert line.startswith("millwheel is ready at "), f"the server ended:\n{self.tail()}"

    async def start(self) -> None:
        """Start a process, and return when it is ready."""
        await self.spawn()
        await self.ready()
