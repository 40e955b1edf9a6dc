"""``millwheel server start-dev``: all roles in one process, on one embedded database. They use gRPC as in a cluster."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from millwheel.authority.catalog_members import CatalogMembers
from millwheel.authority.group_names import GroupTopologies
from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from millwheel.client.authorities import OneAddress
from millwheel.client.control import ControlClient
from millwheel.config import ClusterSection, OtlpSection
from millwheel.config.addresses import is_loopback, split_address
from millwheel.coordination.contract import Put
from millwheel.coordination.sequencers import draw_sequencer
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.master.balancing import BalanceSettings
from millwheel.master.described import described_topology
from millwheel.master.metrics import MasterCollector
from millwheel.master.replica import MasterReplica
from millwheel.master.services import SERVICES as MASTER_SERVICES
from millwheel.master.services import add_services
from millwheel.master.settings import MasterSettings
from millwheel.model.catalog_keys import authority_key
from millwheel.model.stalls import ProcessConditions
from millwheel.model.traces import SpanSource
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.identity import process_tls, use_token
from millwheel.rpc.measuring import Measuring
from millwheel.rpc.server import add_health, bind, create_server
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.rpc.v1.topology_pb2 import CodeReference
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.server.access import authorization_of, code_admission, topology_lookup
from millwheel.server.backends import Backends
from millwheel.server.cluster_settings import ensure_cluster_settings
from millwheel.server.console.serving import serve_console
from millwheel.server.listen_address import advertised_as, reachable
from millwheel.server.measured_backends import measured_backends
from millwheel.server.stall_watch import watch_stalls
from millwheel.server.startup import cancel, ensure_journal, refuse_old_maps, settle_memory
from millwheel.server.status_page import ProcessHealth, register_name, register_process, serve_status
from millwheel.server.telemetry import open_telemetry
from millwheel.snapshots.service import SNAPSHOT_SERVICE, add_snapshots
from millwheel.store.sequencer_allocation import reserve_sequencers
from millwheel.worker.interval import COLLECTS_FOR_US, IntervalSettings, columns_from
from millwheel.worker.process.watermarks import AuthorityLink
from millwheel.worker.process.worker import Worker, WorkerSettings

__all__ = ["DevServer", "DevSettings", "running"]

log = logging.getLogger("millwheel")

_SERVICES = (
    *MASTER_SERVICES,
    SNAPSHOT_SERVICE,
    "millwheel.v1.DeliveryService",
    "millwheel.v1.WatermarkService",
    "millwheel.v1.SubscriptionService",
    "millwheel.v1.InspectionService",
    "millwheel.v1.HandoverService",
    "millwheel.v1.JournalHoldService",
)

_AUTHORITY_JOURNAL = "authority.0"
_WORKER_ID = "dev"
_LEASE_SECONDS = 10.0
"""Seconds of a lease, by the coordinator's :class:`LoopClock`. A standstill of the process ends no lease."""
_FLUSH_US = 5_000_000
"""Maximum microseconds that a state row stays behind the journal if nothing waits for the row. A key that changes all
the time is written so often, and costs as much each time as a few records."""


@dataclass(frozen=True, slots=True)
class DevSettings:
    """The settings of ``start-dev``.

    ``db`` None: a temporary directory that is deleted when the server ends. ``advertise``: the host, or host:port, that
    clients receive. Empty: the listen address, or this machine's address in its network if the server listens on every
    address.
    """

    db: Path | None = None
    host: str = "127.0.0.1"
    port: int = 7433
    metrics_port: int | None = None
    ui_port: int | None = None
    """The port of the web console. 0: a free one. None: no console."""
    ui_read_only: bool = False
    """Whether the console refuses what changes something."""
    intervals: int = 1
    cache_bytes: int = 256 << 20
    advertise: str = ""
    check_values: bool = True
    policy: Path | None = None
    """The access policy. It needs TLS."""
    otlp: OtlpSection = field(default_factory=OtlpSection)
    """Spans and metrics for a collector of OpenTelemetry."""
    slow_hook: float = 1.0
    """Seconds after which a hook that blocks the event loop is named in the log. 0: never."""
    cluster_format: int = 0
    """The format to raise the data to. 0: new data has the newest one, and all other data stays as it is."""
    columns: bool = True
    """Whether windows are kept by columns where a computation may have them."""


@dataclass(slots=True)
class DevServer:
    """A running server. ``address`` is host:port. ``console`` is the URL of the web console, empty without one."""

    address: str
    db: Path
    worker: Worker
    failed: asyncio.Future[None]
    """Receives an exception when a role fails for good."""
    console: str = ""


@asynccontextmanager
async def running(settings: DevSettings) -> AsyncIterator[DevServer]:
    """Run a development server while the block runs. Everything that the server started ends with the block."""
    async with AsyncExitStack() as stack:
        registry, health = CollectorRegistry(), ProcessHealth()
        register_process(registry, health)
        stalls = watch_stalls(stack.enter_context(ExitStack()), registry)
        host = settings.host.strip("[]")
        tls = process_tls()
        use_token(None)
        access = authorization_of(tls, settings.policy)
        server = create_server([Measuring(registry), *([] if access is None else [access])])
        bound = bind(server, settings.port, host, tls)
        address = advertised_as(settings.advertise or reachable(host), bound)
        register_name(registry, f"server at {address}")
        path = settings.db
        if path is None:
            path = Path(tempfile.mkdtemp(prefix="millwheel-"))
            stack.callback(shutil.rmtree, path, True)
        database = await stack.enter_async_context(await EmbeddedDatabase.open(path))
        backends = measured_backends(Backends(database.store, database.coordinator, stack), registry)
        if access is not None:
            access.topology_of = topology_lookup(backends.coordinator)
            stack.push_async_callback(cancel, asyncio.create_task(access.watch()))
        await refuse_old_maps(backends.coordinator, path)
        section = ClusterSection(authority_shards=1, format=settings.cluster_format)
        await ensure_cluster_settings(backends.coordinator, section)
        failed = asyncio.get_running_loop().create_future()
        authority = await _start_authority(stack, backends, server, address, registry)
        conditions = ProcessConditions(stalls.share, stalls.longest)
        master = await _start_master(stack, backends, server, address, settings, failed, conditions)
        master.admit_code = code_admission(access)
        if access is not None:
            access.describe = partial(described_topology, master)
        spans = await open_telemetry(stack, settings.otlp, "dev", address, registry, for_hooks=False)
        worker = await _start_worker(
            stack, backends, server, address, settings, path, code_admission(access), spans, conditions
        )
        for collector in (*worker.collectors(), MasterCollector(master)):
            registry.register(collector)
        await add_health(server, _SERVICES)
        await server.start()
        stack.push_async_callback(server.stop, 0.5)
        if settings.metrics_port is not None:
            shown = None if is_loopback(host) else tls
            serve_status(stack.enter_context(ExitStack()), registry, health, host, settings.metrics_port, shown)
        stack.push_async_callback(cancel, asyncio.create_task(health.beat_for_ever()))
        stack.push_async_callback(cancel, asyncio.create_task(_watch_authority(authority, failed)))
        await worker.start()
        stack.push_async_callback(worker.close)
        await master.leading()
        console = ""
        if settings.ui_port is not None:
            name, read_only = split_address(address)[0], settings.ui_read_only
            console = master.console = await serve_console(
                stack, address, host, settings.ui_port, tls, name, access, read_only=read_only
            )
        settle_memory()
        health.waits_for = ""
        yield DevServer(address, path, worker, failed, console)


async def _start_authority(
    stack: AsyncExitStack,
    backends: Backends,
    server: grpc.aio.Server,
    address: str,
    registry: CollectorRegistry,
) -> AuthorityShard:
    sequencer = await draw_sequencer(backends.coordinator, partial(reserve_sequencers, backends.store))
    await ensure_journal(backends.store, _AUTHORITY_JOURNAL)
    names = GroupTopologies(backends.coordinator)
    shard = await AuthorityShard.open(
        backends.store, _AUTHORITY_JOURNAL, sequencer, registry=registry, labels=names.labels
    )
    stack.push_async_callback(shard.close)
    stack.push_async_callback(cancel, asyncio.create_task(names.run(shard.groups)))
    members = CatalogMembers(backends.coordinator)
    add_WatermarkServiceServicer_to_server(WatermarkServicer(shard, members.check), server)
    record = catalog.AuthorityRecord(shard=0, endpoint=Endpoint(worker_id=_WORKER_ID, address=address))
    await backends.coordinator.transact((), [Put(authority_key(0), record.SerializeToString())])
    return shard


async def _start_master(
    stack: AsyncExitStack,
    backends: Backends,
    server: grpc.aio.Server,
    address: str,
    settings: DevSettings,
    failed: asyncio.Future[None],
    conditions: ProcessConditions,
) -> MasterReplica:
    replica = MasterReplica(
        backends.coordinator,
        backends.store,
        address,
        MasterSettings(
            intervals_per_computation=settings.intervals, balancing=BalanceSettings().for_cache(settings.cache_bytes)
        ),
        ttl=_LEASE_SECONDS,
        conditions=conditions,
    )
    add_services(server, replica)
    add_snapshots(server, replica)
    task = asyncio.create_task(replica.run())
    task.add_done_callback(lambda done: _failed(failed, done))
    stack.push_async_callback(cancel, task)
    return replica


async def _start_worker(
    stack: AsyncExitStack,
    backends: Backends,
    server: grpc.aio.Server,
    address: str,
    settings: DevSettings,
    path: Path,
    admit_code: Callable[[CodeReference], None],
    spans: SpanSource | None,
    conditions: ProcessConditions,
) -> Worker:
    control = await stack.enter_async_context(ControlClient(address))
    worker = Worker(
        WorkerSettings(
            _WORKER_ID,
            address,
            path / "packages",
            lease=_LEASE_SECONDS,
            core=IntervalSettings(
                cache_bytes=settings.cache_bytes,
                flush_interval=_FLUSH_US,
                collects_for=COLLECTS_FOR_US,
                columns_from=columns_from(settings.columns),
            ),
            check_values=settings.check_values,
            slow_hook=settings.slow_hook,
            admit_code=admit_code,
        ),
        backends.store,
        backends.coordinator,
        partial(AuthorityLink, OneAddress(address)),
        control.download_package,
        spans,
        conditions,
    )
    worker.add_services(server)
    return worker


async def _watch_authority(shard: AuthorityShard, failed: asyncio.Future[None]) -> None:
    why = await shard.wait_stopped()
    if not failed.done():
        failed.set_exception(RequestError(FailureCode.UNAVAILABLE, f"the authority has stopped: {why}", "restart"))


def _failed(failed: asyncio.Future[None], task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
        failed.set_exception(error)


Wait = Callable[[], Awaitable[None]]


async def serve(settings: DevSettings, started: Callable[[DevServer], None], until: Wait) -> None:
    """Run a development server until ``until`` returns. A role that fails raises its error here."""
    async with running(settings) as server:
        started(server)
        stop = asyncio.ensure_future(until())
        done, _ = await asyncio.wait({stop, server.failed}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if server.failed in done:
            server.failed.result()
