"""The product's embedded store on a machine that loses power: confirmed writes survive."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millwheel.store.contract import Append, StoreUnavailableError
from simulation.world import World
from tests.simulation.test_cassandra_ways import played


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("pause", [0.0, 0.005], ids=["in place", "by the thread"])
def test_what_was_confirmed_survives_a_loss_of_power_in_a_sync(tmp_path: Path, pause: float) -> None:
    """Records written in that group were not confirmed. They may survive or not."""

    async def play(world: World) -> list[tuple[int, int]]:
        machine: Any = world.store
        store, outcomes = machine.open(), []
        for number in range(20):
            journal = f"j{number}"
            await store.create_journal(journal)
            await store.fence(journal, 1)
            await store.append(journal, Append(1, 1, 0, (), b"a"))
            machine.cut_power()
            with pytest.raises(StoreUnavailableError):
                await store.append(journal, Append(1, 2, 0, (), b"b"))
            machine.return_power()
            await asyncio.sleep(0.1)
            head = await store.read_head(journal)
            assert await store.read_entries(journal, 1, head.commit) == [b"a", b"b"][: head.commit]
            outcomes.append((head.sequencer, head.commit))
        return outcomes

    assert set(played(tmp_path, "embedded", {"pause": pause}, play)) == {(1, 1), (1, 2)}
