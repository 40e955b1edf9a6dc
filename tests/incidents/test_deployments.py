"""The incident of a wrong deployment: new code that raises for every record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.duty import is_chosen, on_duty

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.skipif(not is_chosen("wrong-deployment"), reason="not chosen")
async def test_a_wrong_deployment(tmp_path: Path) -> None:
    also = frozenset({"MillwheelWorkStuck"})
    async with on_duty("wrong-deployment", tmp_path, "MillwheelHookFailing", also=also) as duty:
        program = duty.site.changed_program(("order.amount < 0", "order.price < 0"))
        done = await duty.site.cli("topology", "update", program, "--wait", "60")
        assert done.code == 0, done.err
        duty.caused("an update whose code asks for a field that orders do not have")
        await duty.paged()
        await duty.finds("'Order' object has no attribute 'price'", "cluster", "health")
        await duty.finds("version 2 of shop came at", "cluster", "health")
        await duty.finds("topology shop is updated", "event", "list", "shop")
        await duty.console_shows("millwheel topology rollback shop", "ClusterService/GetClusterHealth")
        await duty.acts("topology", "rollback", "shop", "--wait", "60")
        await duty.mended()
