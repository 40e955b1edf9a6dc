"""A development server in a process of its own, for tests that kill it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.patience import patience

__all__ = ["MAIN", "ROOT", "Finished", "Server", "free_port", "run_cli"]

ROOT = Path(__file__).parents[2]
MAIN = "from millwheel.cli.main import main; main()"


def free_port() -> int:
    """A port that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Finished:
    """What a command left behind."""

    code: int
    out: str
    err: str


def _environment(address: str = "") -> dict[str, str]:
    return {**os.environ, "MILLWHEEL_ADDRESS": address, "NO_COLOR": "1", "COLUMNS": "200", "PYTHONPATH": str(ROOT)}


async def run_cli(address: str, *arguments: str, timeout: float = patience(30), typed: str = "") -> Finished:
    """Run a ``millwheel`` command to its end, with ``typed`` on stdin; no command ever shows a traceback."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        MAIN,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_environment(address),
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(typed.encode()), timeout)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    finished = Finished(process.returncode or 0, out.decode(), err.decode())
    assert "Traceback" not in finished.err, finished.err
    return finished


class Server:
    """``millwheel server start-dev`` on one port and one database, through any number of lives."""

    def __init__(
        self,
        db: Path,
        log: Path,
        *,
        port: int = 0,
        intervals: int = 1,
        wrapper: Sequence[str] = (),
        level: str = "info",
        options: Sequence[str] = (),
    ) -> None:
        """``wrapper``: a command that runs the server's command line, such as strace's. Its stderr goes to ``log``.

        ``options``: further ones of start-dev.
        """
        self.db = db
        self.log = log
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._options = ["--intervals", str(intervals), "--log-level", level, *options]
        self._wrapper = tuple(wrapper)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        """The life that runs."""
        assert self._process is not None
        return self._process

    async def spawn(self) -> None:
        """Begin a life, and return before it is ready."""
        command = [*self._wrapper, sys.executable, "-c", MAIN, "server", "start-dev"]
        place = ["--port", str(self.port), "--db", str(self.db)]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                *place,
                *self._options,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(),
            )

    async def ready(self, timeout: float = patience(60)) -> None:
        """Return when it says that it is ready; AssertionError with the end of its log if it ends before."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), timeout)
        assert line.startswith(b"millwheel is ready at "), f"the server ended:\n{self.tail()}"

    async def start(self) -> None:
        """Begin a life, and return when it is ready."""
        await self.spawn()
        await self.ready()

    async def kill(self) -> None:
        """SIGKILL: as a power cut for the process, not for the disk."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGKILL)
        await self._gone()

    async def _gone(self) -> int:
        """Its exit code, once it has ended and nothing is left in its pipe."""
        assert self.process.stdout is not None
        await self.process.stdout.read()
        return await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM; its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self._gone(), patience(10))

    async def close(self) -> None:
        """Make sure that nothing is left of it."""
        if self._process is not None:
            await self.kill()

    def tail(self, size: int = 4_000) -> str:
        """The end of what it logged."""
        return self.log.read_text(errors="replace")[-size:] if self.log.exists() else ""

    def logged(self, part: str) -> bool:
        """Whether its log has ``part``."""
        return part in self.log.read_text(errors="replace")
