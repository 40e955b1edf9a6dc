"""``millwheel master run``: one replica of the master. It leads, or names the leader (section 7.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from millwheel.config import MasterSection
from millwheel.config.addresses import split_address
from millwheel.master.balancing import BalanceSettings
from millwheel.master.described import described_topology
from millwheel.master.metrics import MasterCollector
from millwheel.master.replica import MasterReplica
from millwheel.master.services import SERVICES, add_services
from millwheel.master.services.watermarks import WatermarkProxy
from millwheel.master.settings import MasterSettings
from millwheel.model.time import seconds
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server
from millwheel.server.access import code_admission
from millwheel.server.certificate_end import certificate_problems
from millwheel.server.console.serving import serve_console
from millwheel.server.daemon import Daemon, Role
from millwheel.server.listen_address import listen_address_of, tls_of
from millwheel.server.startup import cancel, keep
from millwheel.snapshots.allowed import AllowedPlaces
from millwheel.snapshots.service import SNAPSHOT_SERVICE, add_snapshots

__all__ = ["MASTER"]

log = logging.getLogger("millwheel")

_GRACE_SECONDS: Final = 10.0


def _balancing(section: MasterSection) -> BalanceSettings:
    usual = BalanceSettings()
    return replace(
        usual,
        on=section.balance,
        imbalance=section.imbalance,
        balanced=section.imbalance * usual.balanced / usual.imbalance,
        split_busy=section.split_busy,
        merge_busy=section.split_busy * usual.merge_busy / usual.split_busy,
        cool_down=seconds(section.cool_down_seconds),
        most_operations=section.balance_operations,
    )


@asynccontextmanager
async def _master(daemon: Daemon) -> AsyncIterator[None]:
    section, coordinator, store = daemon.settings.master, daemon.backends.coordinator, daemon.backends.store
    async with AsyncExitStack() as stack:
        replica = MasterReplica(
            coordinator,
            store,
            daemon.address,
            MasterSettings(
                intervals_per_computation=section.intervals_per_computation,
                balancing=_balancing(daemon.settings.master),
            ),
            ttl=section.lease_seconds,
            console=await _serve_console(stack, daemon) if section.ui_port else "",
            conditions=daemon.conditions,
        )
        daemon.registry.register(MasterCollector(replica))
        if (tls := tls_of(daemon.settings)) is not None:
            replica.certificate_problems = partial(certificate_problems, tls)
        replica.admit_code = code_admission(daemon.access)
        if daemon.access is not None:
            daemon.access.describe = partial(described_topology, replica)
        add_services(daemon.server, replica)
        add_snapshots(daemon.server, replica, AllowedPlaces(section.snapshot_locations))
        explaining = WatermarkProxy(replica)  # type: ignore[abstract]  # other calls are for the shards themselves
        add_WatermarkServiceServicer_to_server(explaining, daemon.server)

        # The cancellation at the end resigns the leadership, so another replica leads at once.
        task = asyncio.create_task(keep("the master", replica.run))
        stack.push_async_callback(cancel, task)
        yield


async def _serve_console(stack: AsyncExitStack, daemon: Daemon) -> str:
    host = listen_address_of("master", daemon.settings).host
    name = split_address(daemon.address)[0]
    port, read_only = daemon.settings.master.ui_port, daemon.settings.master.ui_read_only
    tls, access = tls_of(daemon.settings), daemon.access
    url = await serve_console(stack, daemon.address, host, port, tls, name, access, read_only=read_only)
    log.info("the console is at %s", url)
    return url


MASTER: Final = Role(
    "master", (*SERVICES, SNAPSHOT_SERVICE, "millwheel.v1.WatermarkService"), _master, lambda settings: _GRACE_SECONDS
)
