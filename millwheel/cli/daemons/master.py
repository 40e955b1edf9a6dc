"""``millwheel master run``: one replica of the master, which leads or names who does (section 7.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from prometheus_client import Gauge

from millwheel.cli.daemons.frame import Daemon, Role
from millwheel.cli.daemons.pieces import cancel, keep
from millwheel.master.services import SERVICES, add_services
from millwheel.master.services.watermarks import WatermarkProxy
from millwheel.master.settings import MasterSettings
from millwheel.master.shell import MasterShell
from millwheel.rpc.v1.watermark_pb2_grpc import add_WatermarkServiceServicer_to_server

__all__ = ["MASTER"]

_GRACE: Final = 10.0


@asynccontextmanager
async def _master(daemon: Daemon) -> AsyncIterator[None]:
    section = daemon.settings.master
    shell = MasterShell(
        daemon.backends.coordinator,
        daemon.backends.store,
        daemon.address,
        MasterSettings(intervals_per_computation=section.intervals_per_computation),
        ttl=section.lease_seconds,
    )
    leads = Gauge("millwheel_master_leads", "Whether this replica leads: 1 or 0", registry=daemon.registry)
    leads.set_function(lambda: shell.leads)
    add_services(daemon.server, shell)
    explaining = WatermarkProxy(shell)  # type: ignore[abstract]  # other calls are for the shards themselves
    add_WatermarkServiceServicer_to_server(explaining, daemon.server)
    # Leaving resigns: another replica leads at once.
    task = asyncio.create_task(keep("the master", shell.run))
    try:
        yield
    finally:
        await cancel(task)


MASTER: Final = Role("master", (*SERVICES, "millwheel.v1.WatermarkService"), _master, lambda settings: _GRACE)
