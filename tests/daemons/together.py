"""Daemons of a whole cluster on one event loop, around one store and one coordinator in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from deploy.local.child import free_ports
from millwheel.config import Configuration, load
from millwheel.model.catalog import Catalog
from millwheel.server.authority import AUTHORITY
from millwheel.server.backends import Backends, Notify
from millwheel.server.daemon import Role, run_daemon
from millwheel.server.master import MASTER
from millwheel.server.worker import WORKER
from millwheel.store.memory import MemoryStore
from tests.coordination.memory import MemoryCoordinator, read_catalog
from tests.daemons.process import is_serving
from tests.patience import patience, until


class Running:
    """One daemon."""

    def __init__(self, together: Together, role: Role, flags: dict[str, str]) -> None:
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        configuration = load(None, {}, {"rpc.listen": self.address, "metrics.listen": "off", **flags})
        self._run = partial(run_daemon, role, configuration, open_with=together.open)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Run the daemon. Returns when it serves."""
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(self._stop))
        await until(self._serves, patience(20), every=0.05)

    async def _serves(self) -> bool:
        assert self._task is not None
        if self._task.done():
            self._task.result()
        with suppress(Exception):
            return await is_serving(self.address)
        return False

    async def stop(self) -> None:
        """Notify it to stop, and wait until it has."""
        self._stop.set()
        task, self._task = self._task, None
        if task is not None:
            await task


class Together:
    """Two masters, two candidates for two authority shards, and two workers."""

    def __init__(self, place: Path, more: Mapping[str, str], masters: Sequence[Mapping[str, str]]) -> None:
        self.store = MemoryStore()
        self.coordinator = MemoryCoordinator()
        quick = {"coordinator.kind": "embedded", "coordinator.path": "-", "store.kind": "embedded", "store.path": "-"}
        leases = {"master.lease_seconds": "1", "authority.lease_seconds": "1", "worker.lease_seconds": "1"}
        flags = {**quick, **leases, **more}
        self.masters = [Running(self, MASTER, {**flags, **own}) for own in masters]
        self.authorities = [Running(self, AUTHORITY, flags) for _ in range(2)]
        self.workers = [
            Running(self, WORKER, {**flags, "worker.id": f"w{number}", "worker.packages": str(place / f"{number}")})
            for number in range(2)
        ]

    async def open(self, configuration: Configuration, tell: Notify) -> Backends:
        """Return the store and the coordinator that all daemons share."""
        return Backends(self.store, self.coordinator, AsyncExitStack())

    @property
    def address(self) -> str:
        """The addresses of all masters, for clients."""
        return ",".join(master.address for master in self.masters)

    async def catalog(self) -> Catalog:
        """The coordinator's current state."""
        return await read_catalog(self.coordinator)

    async def until(self, holds: Callable[[Catalog], bool]) -> None:
        """Return when this holds in the coordinator."""
        await until(self.catalog, patience(60), every=0.05, holds=holds)


@asynccontextmanager
async def together(
    place: Path, flags: Mapping[str, str] | None = None, masters: Sequence[Mapping[str, str]] = ({}, {})
) -> AsyncIterator[Together]:
    """A cluster that serves. The block stops it at its end.

    ``flags``: more settings for all daemons. ``masters``: more settings for each master.
    """
    cluster = Together(place, flags or {}, masters)
    daemons = [*cluster.authorities, *cluster.masters, *cluster.workers]
    try:
        for daemon in daemons:
            await daemon.start()
        yield cluster
    finally:
        await asyncio.gather(*(daemon.stop() for daemon in daemons))
        await cluster.coordinator.close()
