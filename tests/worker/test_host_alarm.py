"""A host's alarm rings by the core's deadline."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.rpc.clock import wall_now
from millwheel.worker.messages import Appended, Tick
from millwheel.worker.process import event_host as events_module
from tests.patience import patience, until
from tests.worker.test_host import Rig


@pytest.mark.guarantee("G8", section="4.4")
async def test_a_deadline_is_met_after_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """An alarm that stays rings before the deadline by the loop's clock. By the wall clock this one does, too."""
    ahead = 0
    monkeypatch.setattr(events_module, "MAX_SLEEP_SECONDS", 3600)
    rig = Rig(clock=lambda: wall_now() + ahead)
    rig.core.alarm = wall_now() + 3_600_000_000
    rig.host.start()
    await asyncio.sleep(0.01)
    ahead = 7_200_000_000
    rig.core.alarm = wall_now() + ahead + 50_000
    rig.host.post(Appended(1))
    await until(lambda: rig.core.of(Tick), patience(1))
    await rig.host.close()
