"""Mosquitto, a broker of MQTT, on loopback: it can be killed, paused and restarted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from deploy.local import apt
from deploy.local.child import ChildProcess, StoppedAtExit, free_ports, listens

__all__ = ["MosquittoBroker", "install"]

_START: Final = 30.0
"""Seconds within which a broker must accept clients."""


def install() -> Path:
    """The path of the program: the one on PATH, or Debian's, which is downloaded into the build folder."""
    return apt.program("mosquitto", "mosquitto", "sbin", with_needed=True)


class MosquittoBroker(StoppedAtExit):
    """A broker that keeps its port when it is stopped and started again. It writes its sessions down when it stops.

    Usable with ``with``. The kernel kills it when this process ends.
    """

    def __init__(self, folder: Path, *settings: str) -> None:
        """``settings``: more lines of its configuration."""
        program = install()
        (self.port,) = free_ports(1)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # As root it would become another user, who cannot write here.
        own = ["user root", f"listener {self.port} 127.0.0.1", "persistence true", f"persistence_location {folder}/"]
        access = [] if any("allow_anonymous" in one for one in settings) else ["allow_anonymous true"]
        file = folder / "mosquitto.conf"
        file.write_text("\n".join([*own, *access, *settings, ""]))
        environment = apt.library_path(program.parents[2])
        self.process = ChildProcess([str(program), "-c", str(file)], folder / "mosquitto.log", environment)

    @property
    def url(self) -> str:
        """Where the broker is, for clients that need no password."""
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the broker, and wait until it accepts clients."""
        self.process.start()
        end = time.monotonic() + _START
        while not listens("127.0.0.1", self.port):
            if not self.process.is_running or time.monotonic() > end:
                raise RuntimeError(f"Mosquitto does not serve; its log ends with:\n{self.process.last_lines()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop the broker."""
        self.process.stop()
