"""A master that was not registered for a while says when and why, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from millwheel.master.presence import keep_present
from millwheel.model.catalog_keys import master_key
from millwheel.model.time import Timestamp
from millwheel.rpc.v1.catalog_pb2 import MasterRecord
from tests.coordination.memory import MemoryCoordinator
from tests.patience import until

TTL = 0.3


async def interruption(longest_stall: Callable[[], float]) -> MasterRecord:
    """The record of a master after its lease has ended."""
    now = 0.0
    coordinator = MemoryCoordinator(lambda: now)

    async def record() -> MasterRecord | None:
        found = await coordinator.get(master_key("m:7433"))
        return None if found is None else MasterRecord.FromString(found.value)

    clock = iter(range(1, 1_000_000))
    registered = keep_present(coordinator, "m:7433", TTL, lambda: Timestamp(next(clock)), "", longest_stall)
    present = asyncio.create_task(registered)
    first = await until(record)
    assert (first.started_at_us, first.interruption) == (1, "")
    now = 10 * TTL
    second = await until(record, holds=lambda found: found is not None and found.interruption)
    present.cancel()
    await asyncio.gather(present, return_exceptions=True)
    assert isinstance(second, MasterRecord)
    assert second.started_at_us == 1
    assert second.interrupted_at_us > 1
    return second


async def test_a_pause_of_the_process_is_why_it_lost_its_lease() -> None:
    found = await interruption(lambda: 4.2)
    assert found.interruption == "its process did not get to run for 4.2 s"


async def test_without_a_pause_the_coordinators_error_is_why() -> None:
    found = await interruption(lambda: TTL / 10)
    assert "lease" in found.interruption


pytestmark = [pytest.mark.timeout(120)]
