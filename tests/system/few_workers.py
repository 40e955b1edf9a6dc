"""A cluster in this process: one embedded database, a master and an authority, and several workers with servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from millwheel.authority.service import WatermarkServicer
from millwheel.authority.shard import AuthorityShard
from millwheel.client.authorities import OnePlace
from millwheel.client.control import ControlClient
from millwheel.coordination.contract import Put
from millwheel.coordination.sequencers import draw_sequencer
from millwheel.embedded.database import EmbeddedDatabase
from millwheel.master.services import add_services
from millwheel.master.settings import MasterSettings
from millwheel.master.shell import MasterShell
from millwheel.model.catalog_keys import authority_key
from millwheel.model.time import milliseconds
from millwheel.rpc.server import bind, create_server
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.common_pb2 import Endpoint
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.server.startup import cancel, ensure_journal
from millwheel.store.sequencer_allocation import reserve_sequencers
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.shell.watermarks import AuthorityLink
from millwheel.worker.shell.worker import Worker, WorkerSettings

__all__ = ["FewWorkers", "few_workers"]


@dataclass
class FewWorkers:
    """``address`` is the master's."""

    address: str
    database: EmbeddedDatabase
    workers: list[Worker]


@asynccontextmanager
async def few_workers(path: Path, count: int, settings: IntervalSettings | None = None) -> AsyncIterator[FewWorkers]:
    """``count`` workers w0, w1, … with their own addresses; everything ends with the block."""
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(await EmbeddedDatabase.open(path / "db"))
        server = create_server()
        address = bind(server, 0)
        sequencer = await draw_sequencer(database.coordinator, partial(reserve_sequencers, database.store))
        await ensure_journal(database.store, "authority.0")
        authority = await AuthorityShard.open(database.store, "authority.0", sequencer)
        stack.push_async_callback(authority.close)
        add_WatermarkServiceServicer_to_server(WatermarkServicer(authority), server)
        record = catalog.AuthorityRecord(shard=0, endpoint=Endpoint(worker_id="authority", address=address))
        await database.coordinator.transact((), [Put(authority_key(0), record.SerializeToString())])
        polling = MasterSettings(poll_loads_every=milliseconds(100))
        master = MasterShell(database.coordinator, database.store, address, polling, ttl=30.0)
        add_services(server, master)
        stack.push_async_callback(cancel, asyncio.create_task(master.run()))
        await server.start()
        stack.push_async_callback(server.stop, 0.5)
        control = await stack.enter_async_context(ControlClient(address, patience=10))
        workers = [
            await _worker(stack, database, f"w{number}", address, path, control, settings or IntervalSettings())
            for number in range(count)
        ]
        await master.leading()
        yield FewWorkers(address, database, workers)


async def _worker(
    stack: AsyncExitStack,
    database: EmbeddedDatabase,
    name: str,
    authority: str,
    path: Path,
    control: ControlClient,
    settings: IntervalSettings,
) -> Worker:
    server = create_server()
    address = bind(server, 0)
    worker = Worker(
        WorkerSettings(name, address, path / "packages", 30.0, core=settings),
        database.store,
        database.coordinator,
        partial(AuthorityLink, OnePlace(authority)),
        control.download_package,
    )
    worker.add_services(server)
    await server.start()
    stack.push_async_callback(server.stop, 0.5)
    await worker.start()
    stack.push_async_callback(worker.close)
    return worker
