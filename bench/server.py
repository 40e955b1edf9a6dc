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

__all__ = ["server", "submit"]

_MILLWHEEL = str(Path(sys.executable).with_name("millwheel"))
_COMMAND = [_MILLWHEEL, "server", "start-dev", "--port", "0"]


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Start a server on a fresh database, and return its address. The server ends with the block."""
    with tempfile.TemporaryDirectory(prefix="millwheel-bench-") as directory:
        process = subprocess.Popen(
            [*_COMMAND, "--db", str(Path(directory) / "db")], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        )
        try:
            assert process.stdout is not None
            ready = re.search(r"ready at (\S+);", process.stdout.readline())
            if ready is None:
                raise RuntimeError(f"the server did not start: exit code {process.wait(10)}")
            yield ready.group(1)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def submit(address: str, name: str) -> None:
    """Submit a topology of bench/topologies.py."""
    target = f"bench.topologies:{name}"
    command = [_MILLWHEEL, "topology", "submit", target, "--address", address]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
