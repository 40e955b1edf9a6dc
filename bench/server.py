"""A development server in a separate process, for one measurement."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ServerProcess", "server", "submit"]

_MILLWHEEL = str(Path(sys.executable).with_name("millwheel"))


class ServerProcess:
    """A server on a folder of its own. It can be killed and started again there."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._command = [_MILLWHEEL, "server", "start-dev", "--db", str(folder / "db"), *options]
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
        """Start it, and return when it is ready."""
        command = [*self._command, "--port", str(self._port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        assert self._process.stdout is not None
        ready = re.search(r"ready at \S+:(\d+);", self._process.stdout.readline())
        if ready is None:
            raise RuntimeError(f"the server did not start: exit code {self._process.wait(10)}")
        self._port = int(ready.group(1))

    def kill(self) -> None:
        """SIGKILL it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@contextlib.contextmanager
def server(*options: str) -> Iterator[str]:
    """Start a server on a fresh database, and return its address. The server ends with the block."""
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as directory:
        process = ServerProcess(Path(directory), *options)
        try:
            yield process.address
        finally:
            process.stop()


def submit(address: str, name: str, module: str = "bench.topologies") -> None:
    """Submit a topology of a module."""
    command = [_MILLWHEEL, "topology", "submit", f"{module}:{name}", "--address", address, "--wait", "60"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
