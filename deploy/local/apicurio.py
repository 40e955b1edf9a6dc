"""A schema registry on loopback: Apicurio Registry, which also speaks the protocol of Confluent's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from deploy.local import jars
from deploy.local.child import ChildProcess, StoppedAtExit, free_ports, listens

__all__ = ["ApicurioRegistry"]

_START: Final = 120.0
"""Seconds within which the registry must accept clients, on a machine with other load."""


class ApicurioRegistry(StoppedAtExit):
    """A registry. It keeps its port when it is stopped and started again, and loses its schemas.

    Usable with ``with``. The kernel kills it when this process ends.
    """

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        """Where it speaks the protocol of Confluent's Schema Registry."""
        found = jars.install(jars.APICURIO)
        self._folder = folder
        self.process = ChildProcess(
            [
                *(str(jars.find_java()), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
                *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self._port}"),
                *("-jar", str(found / f"apicurio-registry-app-{jars.APICURIO.version}-runner.jar")),
            ],
            folder / "apicurio.log",
        )

    def start(self) -> None:
        """Start the registry, and wait until it accepts clients."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.process.start()
        end = time.monotonic() + _START
        while not listens("127.0.0.1", self._port):
            if not self.process.is_running or time.monotonic() > end:
                raise RuntimeError(f"Apicurio does not serve; its log ends with:\n{self.process.last_lines(20)}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it. Its schemas are gone."""
        self.process.stop()
