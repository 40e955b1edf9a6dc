"""Incidents that records cause: one that no code can process, and a key that has too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.duty import is_chosen, on_duty

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.skipif(not is_chosen("poison-record"), reason="not chosen")
async def test_a_poison_record(tmp_path: Path) -> None:
    also = frozenset({"MillwheelDeadLetters"})  # the action makes a letter
    async with on_duty("poison-record", tmp_path, "MillwheelHookFailing", also=also) as duty:
        site = duty.site
        site.till.special.append(("item 3", -1))
        duty.caused("an order has the amount -1")
        await duty.paged()
        await duty.finds("shop/count", "cluster", "health")
        await duty.finds("item 3", "cluster", "health")
        await duty.finds("has the amount -1", "key", "inspect", "shop/count", "item 3")
        await duty.finds("item 3", "watermark", "explain", "shop/sold")
        await duty.console_shows("has the amount -1", "ClusterService/GetClusterHealth")
        old = 'outputs={"totals": Total})'
        program = site.changed_program(old, f"{old[:-1]}, on_failure=mw.dead_letter(after=1))")
        await duty.acts("topology", "update", program, "--wait", "60")
        await duty.mended()
