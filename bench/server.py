"""A development server in a separate process, for one measurement."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from deploy.local.child import ChildProcess

__all__ = ["READY_SECONDS", "ServerProcess", "server", "submit"]

_MILLWHEEL: Final = str(Path(sys.executable).with_name("millwheel"))
READY_SECONDS: Final = 60.0
"""How long a server may take until it is ready."""


class ServerProcess:
    """A server on a folder of its own. It can be killed and started again there. It ends with this process."""

    def __init__(self, folder: Path, *options: str, command: str = _MILLWHEEL) -> None:
        """``folder`` gets its data and its output. ``options`` and ``command``: what is run.

        Raises:
            RuntimeError: It does not get ready.
        """
        self._command = [command, "server", "start-dev", "--db", str(folder / "db"), *options]
        self._log = folder / "server.log"
        self._port = 0
        self.start()

    @property
    def address(self) -> str:
        """Where clients connect. It stays the same."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process that runs now."""
        return self._process.pid

    def start(self) -> None:
        """Start it, and return when it is ready. RuntimeError: it does not get ready, and is ended."""
        before = self._log.stat().st_size if self._log.exists() else 0
        self._process = ChildProcess([*self._command, "--port", str(self._port)], self._log)
        self._process.start()
        try:
            self._port = self._ready_at(before)
        except BaseException:
            self._process.kill()
            raise

    def _ready_at(self, before: int) -> int:
        """The port that it says in its output, from this byte on."""
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and self._process.is_running:
            said = self._log.read_bytes()[before:].decode(errors="replace")
            if ready := re.search(r"ready at \S+:(\d+);", said):
                return int(ready.group(1))
            time.sleep(0.02)
        raise RuntimeError(
            f"the server did not start: exit code {self._process.exit_code}; {self._process.last_lines()}"
        )

    def kill(self) -> None:
        """SIGKILL it."""
        self._process.kill()

    def stop(self) -> None:
        """End it."""
        self._process.stop(15)


@contextlib.contextmanager
def server(*options: str) -> Iterator[str]:
    """Start a server on a fresh database, and return its address. The server ends with the block."""
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as directory:
        process = ServerProcess(Path(directory), *options)
        try:
            yield process.address
        finally:
            process.stop()


def submit(address: str, name: str, module: str = "bench.topologies", *, include: Sequence[str] = ()) -> None:
    """Submit a topology of a module. It imports nothing of this project but ``millwheel``, as those of users.

    ``include``: further packages that it imports.
    """
    command = [_MILLWHEEL, "topology", "submit", f"{module}:{name}", "--address", address, "--wait", "60"]
    command += [f"--include={package}" for package in include]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
