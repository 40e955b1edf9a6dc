"""A host says to its core whether another delivery is the core's next event."""

from __future__ import annotations

import pytest

from millwheel.worker.messages import GroupWatermarks, Tick
from millwheel.worker.process.host import CoreHost
from tests.patience import until
from tests.worker.doubles import delivery
from tests.worker.test_host import JOURNAL, Rig


@pytest.mark.guarantee("G8", section="6.1.1")
async def test_a_delivery_is_followed_if_another_one_is_next() -> None:
    rig = Rig()
    await rig.open()
    for event in (delivery(1), delivery(2), Tick(), delivery(3)):
        rig.host.post(event)
    await until(lambda: len(rig.core.events) == 4)
    assert [event.followed for event in rig.core.of(type(delivery(1)))] == [True, False, False]


@pytest.mark.guarantee("G8", section="6.1.1")
async def test_other_hosts_calls_may_come_before_the_next_delivery() -> None:
    rig, other = Rig(), Rig()
    other.host = CoreHost(JOURNAL, other.core, other.store, other.peers, rig.queue)
    await rig.open()
    posted = (GroupWatermarks({}), delivery(1), Tick(), delivery(2))
    for event in posted:
        other.host.post(Tick())
        rig.host.post(event)
    await until(lambda: len(rig.core.events) == len(posted))
    assert [event.followed for event in rig.core.events if not isinstance(event, Tick)] == [True, False, False]


@pytest.mark.guarantee("G8", section="6.1.1")
async def test_no_delivery_is_followed_by_one_for_another_core() -> None:
    rig, other = Rig(), Rig()
    other.host = CoreHost(JOURNAL, other.core, other.store, other.peers, rig.queue)
    rig.host.post(delivery(1))
    other.host.post(delivery(2))
    await until(lambda: bool(rig.core.events and other.core.events))
    assert not rig.core.events[0].followed
