"""MillWheel's daemons as operating-system processes on loopback. A daemon that ends is restarted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.child import ChildProcess, free_ports
from deploy.local.services import Services
from examples.demo.server import figures

__all__ = ["Daemons"]

ROOT: Final = Path(__file__).parents[2]
_READY: Final = 120.0
_MAIN: Final = "from millwheel.cli.main import main; main()"


class Daemons:
    """Masters, candidates for the authority's shards, and workers, with one configuration. Use it as ``async with``.

    ``address`` is the masters' address for clients. ``config`` is the common configuration file. The logs are in
    ``place``/logs.
    """

    def __init__(
        self,
        place: Path,
        settings: str,
        say: Callable[[str], None],
        *,
        masters: int = 2,
        authorities: int = 2,
        workers: int = 3,
        worker_code: str = "",
        code: str = _MAIN,
        with_consoles: bool = False,
    ) -> None:
        """``settings``: TOML with at least [coordinator] and [store].

        ``code``: a program that runs the command line. ``worker_code``: another program for workers.
        ``with_consoles``: each master serves the web console.
        """
        self.place = place
        self.config = place / "millwheel.toml"
        self._settings = settings
        places = iter([f"127.0.0.1:{port}" for port in free_ports(2 * (masters + authorities + workers))])
        self.masters = list(islice(places, masters))
        self.authorities = list(islice(places, authorities))
        self.workers = list(islice(places, workers))
        self.addresses = {
            f"{role} {number}": address
            for role, served in (("master", self.masters), ("authority", self.authorities), ("worker", self.workers))
            for number, address in enumerate(served, 1)
        }
        """The gRPC addresses, by the names of daemons."""
        self.metrics = dict(zip(self.addresses, places, strict=True))
        """The addresses of the metrics pages, by the names of daemons."""
        consoles = free_ports(masters) if with_consoles else ()
        self.consoles = {f"master {number}": f"127.0.0.1:{port}" for number, port in enumerate(consoles, 1)}
        """The addresses of the web consoles, by the names of masters."""
        self._code, self._worker_code = code, worker_code or code
        self._counted: dict[str, int] = {}
        self.services = Services({name: self._process(name) for name in self.addresses}, say)

    @property
    def address(self) -> str:
        """The masters' address, for clients."""
        return ",".join(self.masters)

    def _process(self, name: str) -> ChildProcess:
        role = name.partition(" ")[0]
        flags = [f"--rpc-listen={self.addresses[name]}", f"--metrics-listen={self.metrics[name]}"]
        if name in self.consoles:
            flags.append(f"--master-ui-port={self.consoles[name].rpartition(':')[2]}")
        if role == "worker":
            flags.append(f"--worker-id={name.replace(' ', '-')}")
        code = self._worker_code if role == "worker" else self._code
        command = [sys.executable, "-c", code, role, "run", f"--config={self.config}", *flags]
        # The environment's entries stay first, so that a compiled tree is used if one is measured.
        found = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
        return ChildProcess(command, self.log(name), {"PYTHONPATH": os.pathsep.join(filter(None, found))})

    def log(self, name: str) -> Path:
        """The log file of a daemon, such as "worker 1"."""
        return self.place / "logs" / f"{name.replace(' ', '-')}.log"

    def kill(self, name: str) -> None:
        """SIGKILL a daemon. It is restarted after a second."""
        self.services.processes[name].kill()

    async def __aenter__(self) -> Self:
        """Start all daemons, and wait until they serve. RuntimeError with their last output if they do not."""
        self.place.mkdir(parents=True, exist_ok=True)
        packages = f'[worker]\npackages = "{self.place / "packages"}"\n'
        self.config.write_text(f'{self._settings}\n{packages}\n[logging]\nformat = "json"\n')
        self.services.start()
        try:
            await self._all_ready()
        except BaseException:
            await self.services.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.services.stop()

    async def _all_ready(self) -> None:
        waiting = set(self.addresses.values())
        try:
            async with asyncio.timeout(_READY):
                while waiting:
                    waiting -= {address for address in waiting if await _serves(address)}
                    await asyncio.sleep(0.2)
        except TimeoutError:
            last = {name: process.last_lines(3) for name, process in self.services.processes.items()}
            text = "\n".join(f"{name}: {lines}" for name, lines in last.items())
            raise RuntimeError(f"the daemons were not ready within {_READY:.0f} s; their last words:\n{text}") from None

    def counts(self, computation: str) -> dict[str, int]:
        """A computation's records so far, over all workers.

        While an interval has no owner, its records are missing. Then the largest earlier count is returned.
        """
        found = 0
        for page in (page for name, page in self.metrics.items() if name.startswith("worker")):
            with contextlib.suppress(OSError):
                found += int(figures(page, computation).get("millwheel_owned_records", 0))
        self._counted[computation] = max(found, self._counted.get(computation, 0))
        return {"records": self._counted[computation]}


async def _serves(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
