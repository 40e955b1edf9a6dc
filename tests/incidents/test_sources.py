"""Incidents of what comes in: an injector process that hangs, and the work that has gathered during an outage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import pytest

from tests.incidents.duty import is_chosen, on_duty
from tests.incidents.till import PROCESS
from tests.patience import patience

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


@pytest.mark.skipif(not is_chosen("stuck-injector"), reason="not chosen")
async def test_a_stuck_injector(tmp_path: Path) -> None:
    async with on_duty("stuck-injector", tmp_path, "MillwheelInjectorSilent") as duty:
        till = duty.site.till
        till.process.pause()
        duty.caused("the injector process hangs, and its program goes on to write orders")
        await duty.paged()
        await duty.finds(f"injector process '{PROCESS}' has reported nothing", "cluster", "health")
        await duty.finds(PROCESS, "watermark", "explain", "shop/sold")
        await duty.finds(PROCESS, "injector", "list", "shop/orders")
        await duty.console_shows(PROCESS, "ClusterService/ExplainHold", topology="shop", computation="sold")
        duty.acts_by("start it again under its name")
        await asyncio.to_thread(till.process.kill)
        till.process.start()
        await duty.mended()


OUTAGE: Final = 180.0
"""Seconds for which no worker runs."""


@pytest.mark.skipif(not is_chosen("backlog-after-an-outage"), reason="not chosen")
async def test_a_backlog_after_an_outage(tmp_path: Path) -> None:
    also = frozenset({"MillwheelProcessDown", "MillwheelIntervalsStranded"})  # those of the outage end a moment later
    async with on_duty("backlog-after-an-outage", tmp_path, "MillwheelWorkStuck", also=also) as duty:
        till, services = duty.site.till, duty.site.cluster.daemons.services
        till.seconds, till.rate = 0.05, 15.0
        workers = [name for name in services.processes if name.startswith("worker")]
        for name in workers:
            await asyncio.to_thread(services.stop_service, name)
        await asyncio.sleep(OUTAGE)
        await asyncio.to_thread(services.start_service, workers[0])
        duty.caused(f"after {OUTAGE:.0f} s without any, one of three workers is back")
        await duty.paged(within=patience(120))
        await duty.finds("computation shop/count is behind", "cluster", "health")
        await duty.finds("stopped in order", "cluster", "health")
        await duty.finds("and have not come back: start them", "cluster", "health")
        await duty.finds("worker.left", "event", "list", "--kind", "worker")
        await duty.finds("count", "interval", "list", "shop/count")
        await duty.console_shows("computation shop/count is behind", "ClusterService/GetOverview")
        for name in workers[1:]:
            await duty.acts_on_service("start", name)
        await duty.mended()
