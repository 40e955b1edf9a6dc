"""A whole cluster on loopback: Cassandra, etcd, and MillWheel's daemons, each an operating-system process."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.error import URLError

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from deploy.local.cassandra import CassandraCluster
from deploy.local.child import ChildProcess, free_ports
from deploy.local.etcd import EtcdCluster
from deploy.local.services import Services
from examples.demo.server import totals

__all__ = ["LocalCluster"]

ROOT: Final = Path(__file__).parents[2]
MASTERS: Final = 2
AUTHORITIES: Final = 2
WORKERS: Final = 3
_READY: Final = 90.0
_COUNTERS_FROM: Final = "window-counter"


class LocalCluster:
    """Started by ``async with``; everything of it ends with the block, or with this process, however that ends.

    ``address`` is what clients take; ``config`` the file that its daemons share.
    """

    def __init__(self, place: Path, say: Callable[[str], None], *, nodes: int = 1, members: int = 1) -> None:
        """``place``: a folder that is its own; ``nodes`` of Cassandra and ``members`` of etcd."""
        self.place = place
        self.config = place / "millwheel.toml"
        self._say = say
        self._nodes, self._members = nodes, members
        ports = free_ports(MASTERS + 2 * WORKERS)
        self.masters = [f"127.0.0.1:{port}" for port in ports[:MASTERS]]
        self.workers = [f"127.0.0.1:{port}" for port in ports[MASTERS : MASTERS + WORKERS]]
        self._metrics = [f"127.0.0.1:{port}" for port in ports[MASTERS + WORKERS :]]
        self._stack = AsyncExitStack()
        self._counted: dict[tuple[str, str], tuple[int, int]] = {}
        self.etcd: EtcdCluster
        self.services: Services

    @property
    def address(self) -> str:
        """The masters, for clients."""
        return ",".join(self.masters)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._say(f"starting Cassandra ({self._nodes} {'node' if self._nodes == 1 else 'nodes'}) and etcd")
            cassandra = CassandraCluster(self.place / "cassandra", self._nodes)
            self.etcd = EtcdCluster(self.place / "etcd", self._members)
            await stack.enter_async_context(self.etcd)
            await stack.enter_async_context(cassandra)
            self.config.write_text(self._toml(cassandra))
            self._say(f"starting {MASTERS} masters, {AUTHORITIES} authorities and {WORKERS} workers")
            self.services = Services(self._daemons(), self._say)
            stack.push_async_callback(self.services.stop)
            self.services.start()
            await self._all_ready()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def _toml(self, cassandra: CassandraCluster) -> str:
        quoted = ", ".join(f'"{one}"' for one in self.etcd.endpoints)
        nodes = ", ".join(f'"{one}"' for one in cassandra.contact_points)
        return (
            f"[coordinator]\nendpoints = [{quoted}]\n\n"
            f'[store]\ncontact_points = [{nodes}]\nreplication = "{self._nodes}"\n\n'
            f'[worker]\npackages = "{self.place / "packages"}"\n\n'
            '[metrics]\nlisten = "off"\n\n'
            '[logging]\nformat = "json"\n'
        )

    def _daemons(self) -> dict[str, ChildProcess]:
        daemons = {}
        for number, address in enumerate(self.masters, 1):
            daemons[f"master {number}"] = self._daemon("master", number, f"--rpc-listen={address}")
        for number in range(1, AUTHORITIES + 1):
            daemons[f"authority {number}"] = self._daemon("authority", number, "--rpc-listen=127.0.0.1:0")
        for number, (address, metrics) in enumerate(zip(self.workers, self._metrics, strict=True), 1):
            flags = (f"--rpc-listen={address}", f"--metrics-listen={metrics}", f"--worker-id=worker-{number}")
            daemons[f"worker {number}"] = self._daemon("worker", number, *flags)
        return daemons

    def _daemon(self, role: str, number: int, *flags: str) -> ChildProcess:
        command = [sys.executable, "-c", "from millwheel.cli.main import main; main()", role, "run"]
        environment = {"PYTHONPATH": str(ROOT)}
        return ChildProcess([*command, f"--config={self.config}", *flags], self.log(f"{role} {number}"), environment)

    def log(self, name: str) -> Path:
        """The log of a daemon, such as "worker 1"."""
        return self.place / "logs" / f"{name.replace(' ', '-')}.log"

    async def _all_ready(self) -> None:
        waiting = {*self.masters, *self.workers}
        try:
            async with asyncio.timeout(_READY):
                while waiting:
                    waiting -= {address for address in waiting if await _serves(address)}
                    await asyncio.sleep(0.2)
        except TimeoutError:
            last = {name: process.last_lines(3) for name, process in self.services.processes.items()}
            told = "\n".join(f"{name}: {lines}" for name, lines in last.items())
            raise RuntimeError(f"the daemons were not ready within {_READY:.0f} s; their last words:\n{told}") from None

    def counts(self, computation: str) -> dict[str, int]:
        """A computation's totals over all workers. A worker that is killed counts from zero: what it had is added."""
        sums: dict[str, int] = {}
        for page in self._metrics:
            try:
                counted = totals(page, computation)
            except (URLError, OSError):
                counted = {}
            for name, value in counted.items():
                base, last = self._counted.get((page, name), (0, 0))
                self._counted[page, name] = (base + last if value < last else base, value)
        for (_, name), (base, last) in self._counted.items():
            sums[name] = sums.get(name, 0) + base + last
        return sums


async def _serves(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
