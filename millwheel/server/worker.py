"""``millwheel worker run``: one process of a worker daemon (section 7.1)."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.config import Settings
from millwheel.config.addresses import split_address
from millwheel.coordination.contract import Coordinator
from millwheel.model.catalog import Catalog
from millwheel.model.catalog_keys import LEADERSHIP
from millwheel.rpc.failures import FailureCode, RequestError, authority_is_away
from millwheel.server.access import code_admission
from millwheel.server.daemon import Daemon, Role
from millwheel.server.startup import retried
from millwheel.worker.interval import COLLECTS_FOR_US, columns_from
from millwheel.worker.interval import IntervalSettings as CoreSettings
from millwheel.worker.process.follower import read_topologies
from millwheel.worker.process.watermarks import AuthorityLink
from millwheel.worker.process.worker import Worker, WorkerSettings

__all__ = ["WORKER", "worker_name"]

log = logging.getLogger("millwheel")

_PATIENCE_SECONDS: Final = 30.0
_FLUSH_US: Final = 60_000_000
"""Maximum microseconds that a state row stays behind the journal if nothing waits for the row.

A key that changes all the time is written once per interval of this length, over a network and on several nodes. Until
then its state is in the journal, and its cell in memory."""
_MARGIN_SECONDS: Final = 5.0
"""Seconds to release all resources, in addition to the seconds for handing over intervals."""


def worker_name(settings: Settings, address: str) -> str:
    """Return the daemon's name: the one in the settings, or its machine's name and its port."""
    return settings.worker.id or f"{socket.gethostname()}-{split_address(address)[1]}"


@asynccontextmanager
async def _worker(daemon: Daemon) -> AsyncIterator[None]:
    section = daemon.settings.worker
    coordinator = daemon.backends.coordinator
    addresses = _CatalogShards()
    worker = Worker(
        WorkerSettings(
            f"{worker_name(daemon.settings, daemon.address)}.{daemon.index}",
            daemon.address,
            section.packages or Path("packages"),
            lease=section.lease_seconds,
            core=CoreSettings(
                cache_bytes=section.cache_mib << 20,
                flush_interval=_FLUSH_US,
                collects_for=COLLECTS_FOR_US,
                columns_from=columns_from(section.columns),
            ),
            hand_over=section.drain_seconds,
            check_values=section.check_values,
            slow_hook=section.slow_hook_seconds,
            admit_code=code_admission(daemon.access),
        ),
        daemon.backends.store,
        coordinator,
        partial(AuthorityLink, addresses),
        lambda digest: _download(coordinator, digest),
        daemon.spans,
        daemon.conditions,
    )
    addresses.catalog = worker.catalog
    worker.add_services(daemon.server)
    for collector in worker.collectors():
        daemon.registry.register(collector)
    try:
        await retried("reading the topologies", lambda: read_topologies(coordinator))
        await retried("registering", worker.start)
        yield
    finally:
        await worker.close()


class _CatalogShards:
    """The addresses of the authority's shards, read from the worker's catalog."""

    def __init__(self) -> None:
        self.catalog = Catalog()

    def shard_of(self, group: str) -> Hashable:
        """Return the shard of a group. The number of shards never changes after the cluster's first start."""
        return self.catalog.shard_of(group)

    async def address_of(self, shard: Hashable) -> str:
        """Return the shard's present address. RequestError: no process serves the shard now."""
        assert isinstance(shard, int)
        record = self.catalog.authorities.get(shard)
        if record is None:
            raise authority_is_away(f"shard {shard}")
        return record.endpoint.address


async def _download(coordinator: Coordinator, digest: str) -> bytes:
    """Download a code package from the leading master."""
    leader = await coordinator.get(LEADERSHIP)
    if leader is None:
        raise RequestError(FailureCode.UNAVAILABLE, "no master leads just now", "an election takes a few seconds")
    async with ControlClient(leader.value.decode(), patience=_PATIENCE_SECONDS) as client:
        return await client.download_package(digest)


WORKER: Final = Role(
    "worker",
    (
        "millwheel.v1.DeliveryService",
        "millwheel.v1.SubscriptionService",
        "millwheel.v1.InspectionService",
        "millwheel.v1.HandoverService",
        "millwheel.v1.JournalHoldService",
    ),
    _worker,
    lambda settings: settings.worker.drain_seconds + _MARGIN_SECONDS,
    worker_name,
)
