"""A topology that is restored from a snapshot has the results of one that was never interrupted (G1, G6, G12, G15)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patience, until
from tests.snapshots import shop
from tests.snapshots.loading import accounts, expected, expected_accounts, sell, totals
from tests.submitting import submit_copy
from tests.system.server import Server, run_cli

FIRST = 1_000
"""Orders before the snapshot. It is taken while others come."""
ACKED = 25
"""Results that the subscriber ACKs before the snapshot."""


async def snapshot(server: Server, *arguments: str) -> Any:
    """The JSON that ``millwheel snapshot`` prints."""
    done = await run_cli(server.address, "snapshot", *arguments, "-o", "json", timeout=patience(60))
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.guarantee("G1", section="6.1")
@pytest.mark.timeout(240)
async def test_a_restored_topology_has_the_uninterrupted_results(tmp_path: Path) -> None:
    place = str(tmp_path / "backups")
    sent, ends = [0], asyncio.Event()
    async with Server(tmp_path / "a", tmp_path / "a.log", intervals=2) as first:
        await submit_copy(first.address, shop.__file__, "shop", tmp_path)
        early = await snapshot(first, "create", "shop", "--to", place, "--name", "early")
        assert early["written_bytes"] == early["size_bytes"]
        selling = asyncio.create_task(sell(first.address, 0, ends, lambda count: sent.__setitem__(0, count), 0.02))
        await totals(first.address, "reader", ACKED)
        await until(lambda: sent[0] > FIRST, patience(60))
        checkpoint = sent[0]
        taken = await snapshot(first, "create", "shop", "--to", place, "--name", "s")
        assert taken["written_bytes"] < taken["size_bytes"], "the code was there"
        deleted = await snapshot(first, "delete", place, "early", "--yes")
        assert (deleted["names"], deleted["freed_bytes"] < early["size_bytes"]) == (["early"], True)
        after = sent[0]
        print(f"{checkpoint=} {after=} stall {taken['stall_seconds']} s, attempts {taken['attempts']}")
        ends.set()
        orders = await selling
        assert Counter(await totals(first.address, "all")) == expected(orders), "the load is not disturbed"
        checked = await snapshot(first, "verify", place, "s")
        assert checked["state_rows"] + checked["entries"] > 0
    async with Server(tmp_path / "b", tmp_path / "b.log", intervals=1) as second:
        restored = await snapshot(second, "restore", place, "s")
        assert (restored["name"], restored["version"], restored["state"]) == ("shop", 1, "running")
        await sell(second.address, checkpoint // 20 * 20, orders, lambda count: None)
        everything = await totals(second.address, "all")
        assert Counter(everything) == expected(orders)
        found = await accounts(second.address)
        assert len(found) == 2
        assert set(found) == expected_accounts(orders), "states in pages, and the order of each key's records"
        by_customer: dict[str, int] = {}
        for one in everything:
            assert one.until > by_customer.get(one.customer, 0), "the results of a customer keep their order"
            by_customer[one.customer] = one.until
        assert await totals(second.address, "reader") == everything[ACKED:], "the cursor is where it was ACKed"
