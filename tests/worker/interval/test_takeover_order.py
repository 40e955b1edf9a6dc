"""A new owner begins only when the store and the authority both know it (G4; section 6.2)."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import JournalHead
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalCore
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Delivery,
    GroupWatermarks,
    Opened,
    Started,
    Tick,
)
from tests.worker.interval.driver import INJECTOR, IntervalDriver
from tests.worker.interval.test_order import Ordered


@pytest.mark.guarantee("G4", section="6.2")
def test_an_owner_does_nothing_before_the_authority_knows_it() -> None:
    """Before that, the owner only asks the authority. It appends, ACKs, sends, fires and reports nothing."""
    before = IntervalDriver(Ordered())
    before.deliver(("key", "10", 1))
    before.commit_all()
    core = IntervalCore(before.state.config, before.state.program, {}, lambda consumer, key: "")
    core.step(Started(), before.now)
    head = JournalHead(7, len(before.entries), 0, ())
    asked = core.step(Opened(head, {}, before.entries, ()), before.now)
    assert asked == [AcceptSequencer(IncarnationId("test.1"), ALL_KEYS, 7)]
    values = [msgspec.msgpack.encode(("key", "more"))]
    sender = Sender("injector/in/p", 1, None, INJECTOR)
    ids = PositionIds("in/p", 0, [7])
    delivery = Delivery(IncarnationId("test.1"), "test.1.j1", "in", sender, ids, [b"key"], values, [20])
    for event in (delivery, GroupWatermarks({INJECTOR: 50}), Tick()):
        assert core.step(event, before.now) == []
    assert core.next_deadline() is None
    assert core.step(Accepted(MIN_TIMESTAMP), before.now) != []
