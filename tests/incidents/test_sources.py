"""Incidents of what comes in: an injector process that hangs, and the work that has gathered during an outage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.incidents.duty import is_chosen, on_duty
from tests.incidents.till import PROCESS
from tests.patience import patience

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


@pytest.mark.skipif(not is_chosen("stuck-injector"), reason="not chosen")
async def test_a_stuck_injector(tmp_path: Path) -> None:
    async with on_duty("stuck-injector", tmp_path, "MillwheelWatermarkStuck") as duty:
        till = duty.site.till
        till.process.pause()
        duty.caused("the injector process hangs, and its program goes on to write orders")
        await duty.paged(within=patience(300))
        await duty.finds(PROCESS, "watermark", "explain", "shop/sold")
        await duty.finds(PROCESS, "injector", "list", "shop/orders")
        await duty.console_shows(PROCESS, "ClusterService/ExplainHold", topology="shop", computation="sold")
        duty.acts_by("start it again under its name")
        await asyncio.to_thread(till.process.kill)
        till.process.start()
        await duty.mended()
