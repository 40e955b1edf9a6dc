"""A new owner begins only when the store and the authority both know it (G4; section 6.2)."""

from __future__ import annotations

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import JournalHead
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalCore
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.messages import (
    Accepted,
    AcceptSequencer,
    Acknowledged,
    CheckSequence,
    Delivery,
    GroupWatermarks,
    Opened,
    SendDelivery,
    SequenceChecked,
    Started,
    Tick,
)
from tests.worker.interval.driver import INJECTOR, IntervalDriver
from tests.worker.interval.test_order import Ordered


class Flagged(mw.Computation[tuple[str, str], None]):
    """Produces whether its records are late."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", "late" if record.late else "on time")


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


@pytest.mark.guarantee("G14", section="7.2")
def test_an_owner_starts_from_what_was_reported_before_it() -> None:
    """Consumers may know the reported watermark, though no entry has it.

    Regression: the record was on time at the new owner, and what it produced was late at the consumer. So the second
    phase of a spread window dropped records that the first phase had taken, and they were in no window and not too
    late.
    """
    before = IntervalDriver(Flagged())
    before.deliver(("key", "", 50))
    before.watermark(50)
    before.commit_all()
    (send,) = before.take(SendDelivery)
    before.handle(Acknowledged(send.delivery.token))
    before.watermark(70)
    delivery = before.deliver(("key", "", 60), ("key", "", 70))
    assert before.output == 70, "and the owner dies before it commits the records"
    after = IntervalDriver(Flagged(), entries=before.entries, early=[delivery], accepted=before.output)
    for check in after.take(CheckSequence):
        after.handle(SequenceChecked(check.sequence, True))
    after.commit_all()
    assert after.sent() == [("on time", 50), ("late", 60), ("on time", 70)]
    assert after.output == 70
    assert decode_entry(after.entries[-1], "here").watermark == 70
    assert IntervalDriver(Flagged(), entries=after.entries).state.watermark == 70
