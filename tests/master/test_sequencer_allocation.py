"""A coordinator that is set back, by a snapshot of before, while the store goes on (G3, 6.2)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from millwheel.coordination.contract import Put
from millwheel.coordination.memory import MemoryCoordinator
from millwheel.coordination.sequencers import draw_sequencer
from millwheel.master import sequencer_allocation
from millwheel.master.sequencer_allocation import raise_counter, remember_drawn
from millwheel.model.catalog_keys import SEQUENCER
from millwheel.store.contract import JournalHead, StoreUnavailableError
from millwheel.store.memory import MemoryStore


class Flaky(MemoryStore):
    failures = 1

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("no quorum")
        return await super().fence(journal, sequencer)


async def remember(store: MemoryStore, number: int) -> None:
    """What a master does in whose catalog ``number`` is the last that was drawn."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            await remember_drawn(store, lambda: number)


@pytest.mark.guarantee("G3", section="6.2")
async def test_a_restored_coordinator_draws_no_earlier_sequencer_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sequencer_allocation, "_CHECK_EVERY_SECONDS", 0.01)
    store = Flaky()
    before = MemoryCoordinator()
    await raise_counter(before, store)
    for number in range(1, 8):
        assert await draw_sequencer(before) == number
    await remember(store, 7)
    await remember(store, 5)  # one that was deposed long ago takes nothing back
    await raise_counter(before, store)
    assert await draw_sequencer(before) == 8, "a counter that was not set back goes on as it was"
    assert "set back" not in caplog.text
    restored = MemoryCoordinator()
    await restored.transact((), [Put(SEQUENCER, b"3")])
    await raise_counter(restored, store)
    assert await draw_sequencer(restored) > 7 + 1_000
    assert "its counter of sequencers stood at 3, and 7 had been drawn" in caplog.text
    lost = MemoryCoordinator()
    await raise_counter(lost, store)
    assert await draw_sequencer(lost) > 7
    for coordinator in (before, restored, lost):
        await coordinator.close()
