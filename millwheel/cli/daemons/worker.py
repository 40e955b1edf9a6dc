"""``millwheel worker run``: one process of a worker daemon (section 7.1)."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from millwheel.cli.daemons.frame import Daemon, Role
from millwheel.cli.daemons.pieces import patiently
from millwheel.client.control import ControlClient
from millwheel.client.shards import shard_is_away
from millwheel.config import Settings
from millwheel.config.addresses import split_address
from millwheel.coordination.contract import Coordinator
from millwheel.core.catalog import Catalog
from millwheel.core.catalog_keys import LEADERSHIP
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.worker.interval import Settings as CoreSettings
from millwheel.worker.shell.authority import AuthorityLink
from millwheel.worker.shell.follower import read_topologies
from millwheel.worker.shell.metrics import WorkerCollector
from millwheel.worker.shell.worker import Worker, WorkerSettings

__all__ = ["WORKER", "worker_name"]

log = logging.getLogger("millwheel")

_PATIENCE: Final = 30.0
_FLUSH: Final = 60_000_000
"""Microseconds that state rows may be behind the journal where nothing waits for them. A key that changes all the time
is written so often, over a network and on several nodes; until then its state is in the journal, and its cell in
memory."""
_MARGIN: Final = 5.0
"""Seconds, beside those for handing over, to let go of everything."""


def worker_name(settings: Settings, address: str) -> str:
    """The daemon's name: what the settings say, or its machine and its port."""
    return settings.worker.id or f"{socket.gethostname()}-{split_address(address)[1]}"


@asynccontextmanager
async def _worker(daemon: Daemon) -> AsyncIterator[None]:
    section = daemon.settings.worker
    coordinator = daemon.backends.coordinator
    places = _Places()
    link = AuthorityLink(places)
    await link.start()
    worker = Worker(
        WorkerSettings(
            f"{worker_name(daemon.settings, daemon.address)}.{daemon.index}",
            daemon.address,
            section.packages or Path("packages"),
            section.lease_seconds,
            CoreSettings(cache_bytes=section.cache_mib << 20, flush_interval=_FLUSH),
            section.drain_seconds,
            section.check_values,
            section.slow_hook_seconds,
        ),
        daemon.backends.store,
        coordinator,
        link,
        lambda digest: _download(coordinator, digest),
    )
    places.catalog = worker.catalog
    worker.add_services(daemon.server)
    daemon.registry.register(WorkerCollector(worker.tallies, worker.quarantined_places, worker.hooks.running))
    try:
        await patiently("reading the topologies", lambda: read_topologies(coordinator))
        await patiently("registering", worker.start)
        yield
    finally:
        await worker.close()
        await link.close()


class _Places:
    """Where the authority's shards are, as the worker's catalog has it."""

    def __init__(self) -> None:
        self.catalog = Catalog()

    def shard_of(self, computation: str) -> Hashable:
        """Settled when the cluster was made."""
        return self.catalog.shard_of(computation)

    async def address_of(self, shard: Hashable) -> str:
        """Where it is now."""
        assert isinstance(shard, int)
        record = self.catalog.authorities.get(shard)
        if record is None:
            raise shard_is_away(f"number {shard}")
        return record.endpoint.address


async def _download(coordinator: Coordinator, digest: str) -> bytes:
    """A code package, from whoever leads the masters."""
    leader = await coordinator.get(LEADERSHIP)
    if leader is None:
        raise RequestError(FailureCode.UNAVAILABLE, "no master leads just now", "an election takes a few seconds")
    async with ControlClient(leader.value.decode(), patience=_PATIENCE) as client:
        return await client.download_package(digest)


WORKER: Final = Role(
    "worker",
    (
        "millwheel.v1.DeliveryService",
        "millwheel.v1.SubscriptionService",
        "millwheel.v1.InspectionService",
        "millwheel.v1.HandoverService",
    ),
    _worker,
    lambda settings: settings.worker.drain_seconds + _MARGIN,
)
