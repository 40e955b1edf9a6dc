"""Incidents that records cause: one that no code can process, and a key that has too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.incidents.duty import is_chosen, on_duty
from tests.incidents.till import item_of
from tests.patience import patience

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.skipif(not is_chosen("poison-record"), reason="not chosen")
async def test_a_poison_record(tmp_path: Path) -> None:
    also = frozenset({"MillwheelWorkStuck", "MillwheelDeadLetters"})  # the action makes a letter
    async with on_duty("poison-record", tmp_path, "MillwheelHookFailing", also=also) as duty:
        site = duty.site
        site.till.special.append(("kale", -1))
        duty.caused("an order has the amount -1")
        await duty.paged()
        await duty.finds("shop/count", "cluster", "health")
        await duty.finds("kale", "cluster", "health")
        await duty.finds("has the amount -1", "key", "inspect", "shop/count", "kale")
        await duty.finds("kale", "watermark", "explain", "shop/sold")
        await duty.console_shows("has the amount -1", "ClusterService/GetClusterHealth")
        old = 'outputs={"totals": Total})'
        program = site.changed_program((old, f"{old[:-1]}, on_failure=mw.dead_letter(after=1))"))
        await duty.acts("topology", "update", program, "--wait", "60")
        await duty.mended()


CHEAPER = (
    ("def look_up(", "known: set[str] = set()\n\n\ndef look_up("),
    ("    time.sleep(", "    if order.item in known:\n        return\n    known.add(order.item)\n    time.sleep("),
)
"""Changes of the program: it looks up each item once."""


@pytest.mark.skipif(not is_chosen("hot-key"), reason="not chosen")
async def test_a_hot_key(tmp_path: Path) -> None:
    async with on_duty("hot-key", tmp_path, "MillwheelWorkStuck") as duty:
        till = duty.site.till
        till.seconds, till.rate = 0.05, 60.0
        till.item = lambda number: "kale" if number % 30 else item_of(number // 30)
        duty.caused("nearly all orders are for kale: three times as many as one core takes")
        await duty.paged(within=patience(120))
        await duty.finds("key 'kale' of shop/count", "cluster", "health")
        await duty.console_shows("key 'kale' of shop/count", "ClusterService/GetClusterHealth")
        await duty.acts("topology", "update", duty.site.changed_program(*CHEAPER), "--wait", "60")
        await duty.mended()
