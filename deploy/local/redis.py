"""Redis on loopback: a server with its data in a folder, which can be killed, paused and restarted."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Final

from deploy.local import apt
from deploy.local.child import ChildProcess, StoppedAtExit, free_ports

__all__ = ["RedisServer", "install"]

_START: Final = 30.0
"""Seconds within which a server must serve."""
_SETTINGS: Final = {"bind": "127.0.0.1", "save": "", "appendonly": "yes", "appendfsync": "everysec"}


def install() -> Path:
    """The path of the program: the one on PATH, or Debian's, which is downloaded into the build folder."""
    return apt.program("redis-server", "redis-server", with_needed=True)


class RedisServer(StoppedAtExit):
    """A server with an append-only file. It keeps its port and its data when it is stopped and started again.

    Usable with ``with``. The kernel kills it when this process ends.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        """``settings``: more settings of the server, with ``_`` in place of ``-``."""
        program = install()
        self.port, bus = free_ports(2)
        # By default the bus of a cluster has a port that the system gives to outgoing connections.
        own = {**_SETTINGS, "port": str(self.port), "cluster-port": str(bus), "dir": str(folder), **settings}
        words = [word for name, value in own.items() for word in (f"--{name.replace('_', '-')}", value)]
        environment = apt.library_path(program.parents[2])
        self.folder = folder
        self.process = ChildProcess([str(program), *words], folder / "redis.log", environment)

    @property
    def url(self) -> str:
        """Where the server is, for clients that need no password."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, and wait until it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process.start()
        end = time.monotonic() + _START
        while not self._serves():
            if not self.process.is_running or time.monotonic() > end:
                raise RuntimeError(f"Redis does not serve; its log ends with:\n{self.process.last_lines()}")
            time.sleep(0.02)

    def _serves(self) -> bool:
        """Whether it answers. While it loads its data, or asks for a password, it answers with an error."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(100).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL the server. What was written to its file stays."""
        self.process.kill()

    def stop(self) -> None:
        """Stop the server. What was written to its file stays."""
        self.process.stop()
