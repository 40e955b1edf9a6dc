"""``millwheel server start-dev``: every role in one process, on one embedded database, talking gRPC as in a cluster."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shell import AuthorityShell
from millwheel.cli.daemons.pieces import (
    cancel,
    draw_sequencer,
    ensure_journal,
    refuse_old_maps,
    serve_metrics,
    settle_memory,
)
from millwheel.cli.daemons.places import advertised_as, reachable
from millwheel.client.control import ControlClient
from millwheel.config.addresses import is_loopback
from millwheel.coordination.contract import Put
from millwheel.core.catalog_keys import authority_key
from millwheel.master.metrics import MasterCollector
from millwheel.master.services import SERVICES as MASTER_SERVICES
from millwheel.master.services import add_services
from millwheel.master.settings import MasterSettings
from millwheel.master.shell import MasterShell
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import process_tls
from millwheel.rpc.server import add_health, bind, create_server
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.store.database import EmbeddedDatabase
from millwheel.worker.interval import Settings
from millwheel.worker.shell.authority import AuthorityLink
from millwheel.worker.shell.metrics import WorkerCollector
from millwheel.worker.shell.worker import Worker, WorkerSettings

__all__ = ["DevServer", "DevSettings", "running"]

log = logging.getLogger("millwheel")

_SERVICES = (
    *MASTER_SERVICES,
    "millwheel.v1.DeliveryService",
    "millwheel.v1.WatermarkService",
    "millwheel.v1.SubscriptionService",
    "millwheel.v1.InspectionService",
    "millwheel.v1.HandoverService",
)

_AUTHORITY_JOURNAL = "authority.0"
_WORKER_ID = "dev"
_LEASE = 10.0
"""Seconds in which the process runs; by the coordinator's :class:`LoopClock` a standstill ends no lease."""


@dataclass(frozen=True, slots=True)
class DevSettings:
    """What ``start-dev`` can be told. ``db`` None: a temporary directory that goes with the server.

    ``advertise``: the host, or host:port, that clients are told; empty: what it listens on, or, where that is every
    address, the one that this machine has in its network.
    """

    db: Path | None = None
    host: str = "127.0.0.1"
    port: int = 7433
    metrics_port: int | None = None
    intervals: int = 1
    cache_bytes: int = 256 << 20
    advertise: str = ""
    check_values: bool = True
    slow_hook: float = 1.0
    """Seconds from which on a hook that keeps the event loop is named; 0: never."""


@dataclass(slots=True)
class DevServer:
    """A server that runs; ``address`` is host:port."""

    address: str
    db: Path
    worker: Worker
    failed: asyncio.Future[None]
    """Set with an exception when a role cannot go on."""


@asynccontextmanager
async def running(settings: DevSettings) -> AsyncIterator[DevServer]:
    """A development server, from its first to its last moment; everything it started ends with it."""
    async with AsyncExitStack() as stack:
        server = create_server()
        host = settings.host.strip("[]")
        tls = process_tls()
        bound = bind(server, settings.port, host, tls)
        address = advertised_as(settings.advertise or reachable(host), bound)
        path = settings.db
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="millwheel-"))
            stack.callback(shutil.rmtree, path, True)
        database = await stack.enter_async_context(await EmbeddedDatabase.open(path))
        await refuse_old_maps(database.coordinator, path)
        registry = CollectorRegistry()
        failed = asyncio.get_running_loop().create_future()
        authority = await _start_authority(stack, database, server, address, registry)
        master = await _start_master(stack, database, server, address, settings, failed)
        worker = await _start_worker(stack, database, server, address, settings, path)
        registry.register(WorkerCollector(worker.tallies, worker.quarantined_places, worker.hooks.running))
        registry.register(MasterCollector(master))
        await add_health(server, _SERVICES)
        await server.start()
        stack.push_async_callback(server.stop, 0.5)
        if settings.metrics_port is not None:
            private = is_loopback(host)
            serve_metrics(
                stack.enter_context(ExitStack()), registry, host, settings.metrics_port, None if private else tls
            )
        stack.push_async_callback(cancel, asyncio.create_task(_watch_authority(authority, failed)))
        await worker.start()
        stack.push_async_callback(worker.close)
        await master.leading()
        settle_memory()
        yield DevServer(address, path, worker, failed)


async def _start_authority(
    stack: AsyncExitStack,
    database: EmbeddedDatabase,
    server: grpc.aio.Server,
    address: str,
    registry: CollectorRegistry,
) -> AuthorityShell:
    sequencer = await draw_sequencer(database.coordinator)
    await ensure_journal(database.store, _AUTHORITY_JOURNAL)
    shell = await AuthorityShell.open(database.store, _AUTHORITY_JOURNAL, sequencer, registry=registry)
    stack.push_async_callback(shell.close)
    add_WatermarkServiceServicer_to_server(WatermarkServicer(shell), server)
    record = catalog.AuthorityRecord(shard=0, endpoint=Endpoint(worker_id=_WORKER_ID, address=address))
    await database.coordinator.transact((), [Put(authority_key(0), record.SerializeToString())])
    return shell


async def _start_master(
    stack: AsyncExitStack,
    database: EmbeddedDatabase,
    server: grpc.aio.Server,
    address: str,
    settings: DevSettings,
    failed: asyncio.Future[None],
) -> MasterShell:
    shell = MasterShell(
        database.coordinator,
        database.store,
        address,
        MasterSettings(intervals_per_computation=settings.intervals),
        ttl=_LEASE,
    )
    add_services(server, shell)
    task = asyncio.create_task(shell.run())
    task.add_done_callback(lambda done: _failed(failed, done))
    stack.push_async_callback(cancel, task)
    return shell


async def _start_worker(
    stack: AsyncExitStack,
    database: EmbeddedDatabase,
    server: grpc.aio.Server,
    address: str,
    settings: DevSettings,
    path: Path,
) -> Worker:
    control = await stack.enter_async_context(ControlClient(address))
    link = AuthorityLink(address)
    await link.start()
    stack.push_async_callback(link.close)
    worker = Worker(
        WorkerSettings(
            _WORKER_ID,
            address,
            path / "packages",
            _LEASE,
            Settings(cache_bytes=settings.cache_bytes),
            check_values=settings.check_values,
            slow_hook=settings.slow_hook,
        ),
        database.store,
        database.coordinator,
        link,
        control.download_package,
    )
    worker.on_idle = gc.collect
    worker.add_services(server)
    return worker


async def _watch_authority(shell: AuthorityShell, failed: asyncio.Future[None]) -> None:
    why = await shell.wait_stopped()
    if not failed.done():
        failed.set_exception(RequestError(FailureCode.UNAVAILABLE, f"the authority has stopped: {why}", "restart"))


def _failed(failed: asyncio.Future[None], task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
        failed.set_exception(error)


Wait = Callable[[], Awaitable[None]]


async def serve(settings: DevSettings, started: Callable[[DevServer], None], until: Wait) -> None:
    """Run a development server until ``until`` returns, or a role fails, which raises."""
    async with running(settings) as server:
        started(server)
        stop = asyncio.ensure_future(until())
        done, _ = await asyncio.wait({stop, server.failed}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if server.failed in done:
            server.failed.result()
