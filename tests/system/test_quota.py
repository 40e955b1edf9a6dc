"""A quota of records slows an injector down, and does not stop it (G2, G13)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.messages import Limits
from tests.patience import patience
from tests.submitting import submit_copy
from tests.system import letter_shop as program
from tests.system.letter_shop import Order
from tests.system.server import Server, run_cli

# The last record waits for much longer than the time after which an injector sends again what has no answer.
RESENDS = Limits(batch_records=100, resend_after=500_000)
ORDERS = 1_500
"""Three computations read each of them, so they take 4.5 seconds less the first one, which is free."""


@pytest.mark.timeout(120)
async def test_an_injector_beyond_its_quota_comes_to_its_end(tmp_path: Path) -> None:
    async with Server(tmp_path / "db", tmp_path / "server.log") as server:
        await submit_copy(server.address, program.__file__, "shop", tmp_path)
        done = await run_cli(server.address, "topology", "quota", "shop", "--records-per-second", "1000")
        assert done.code == 0, done.err
        await asyncio.sleep(1.0)  # the worker follows the catalog
        async with (
            asyncio.timeout(patience(25)),
            Injector(
                "orders",
                address=server.address,
                process="p",
                topology=program.shop,
                settings=InjectorSettings(limits=RESENDS),
            ) as injector,
        ):
            began = asyncio.get_running_loop().time()
            orders = [Order(f"customer-{number % 7}", "tea") for number in range(ORDERS)]
            await injector.send_many(orders, [number + 1 for number in range(ORDERS)])
            await injector.flush()
            took = asyncio.get_running_loop().time() - began
        assert took > 2, f"the quota holds: {took:.1f} s"
