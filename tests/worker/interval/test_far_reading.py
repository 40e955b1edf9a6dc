"""When the interval reads spilled timers from the store (4.6; G6, G8)."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.store.contract import PartId
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import Acknowledged, PartsRead, PartsWritten, ReadSegments, SendDelivery, WriteParts
from tests.worker.interval.driver import IntervalDriver


class Alarm(mw.Computation[tuple[str, str], None]):
    """Sets a timer at the time that the record says, or passes it on, and says when it fires."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1].isdigit():
            ctx.set_timer(Timestamp(int(record.value[1])), "t")
        else:
            ctx.produce("out", record.value[1])

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        ctx.produce("out", str(timer.timestamp))


def settle(driver: IntervalDriver, stored: dict[PartId, bytes]) -> None:
    """Perform the core's effects on the store until there are none."""
    going = True
    while going:
        for write in driver.take(WriteParts):
            stored.update(write.parts)
            driver.handle(PartsWritten(write.number))
        reads = driver.take(ReadSegments)
        for read in reads:
            driver.handle(PartsRead({part: stored[part] for part in read.parts}))
        going = bool(driver.commit_all() or reads)


def with_far_timers(part: int = 1, **options: Any) -> tuple[IntervalDriver, dict[PartId, bytes]]:
    """Timers at 1,002 to 1,007 are in the store, and two later ones in memory."""
    settings = IntervalSettings(timers_kept=2, timer_part=part, timer_lead=0, checkpoint_entries=1, flush_interval=0)
    driver, stored = IntervalDriver(Alarm(), settings=settings, **options), dict[PartId, bytes]()
    # The timers in memory are set again, so the first due timers are in the store.
    for number, at in [*((number, 1_000 + number) for number in range(8)), (0, 5_000), (1, 5_001)]:
        driver.deliver((f"k{number}", str(at), 0))
        settle(driver, stored)
    timers, domain = driver.state.timers, mw.TimeDomain.EVENT_TIME
    assert sorted(setting.at for _, _, setting in timers.tables[domain].items()) == [5_000, 5_001]
    assert timers.spilled.first[domain] == 1_002
    return driver, stored


@pytest.mark.guarantee("G7", section="4.6")
def test_a_due_stored_timer_holds_the_watermark_until_it_fires() -> None:
    driver, stored = with_far_timers()
    driver.watermark(3_000)
    assert driver.output == 1_002, "it is being read"
    settle(driver, stored)
    driver.sent()
    assert driver.output == 1_002, "what it produced is not ACKed"


@pytest.mark.guarantee("G8", section="4.6")
def test_the_event_that_makes_stored_timers_due_requests_them() -> None:
    """Regression: the interval looked for such timers before the watermark moved.

    If the end came in one step, no other event followed.
    """
    driver, stored = with_far_timers()
    driver.watermark(MAX_TIMESTAMP)
    settle(driver, stored)
    assert [int(value) for value, _ in driver.sent()] == [*range(1_002, 1_008), 5_000, 5_001]


@pytest.mark.guarantee("G8", section="4.6")
def test_stored_timers_are_requested_when_nearer_ones_were_reset() -> None:
    """If memory is full of timers, those of memory fire first.

    Regression: the interval waited for a timer that was set to another time.
    """
    driver, stored = with_far_timers(part=2)
    driver.watermark(MAX_TIMESTAMP)
    settle(driver, stored)
    assert [int(value) for value, _ in driver.sent()] == [*range(1_002, 1_008), 5_000, 5_001]


@pytest.mark.guarantee("G8", section="4.6, 6.1.3")
def test_loaded_timers_fire_though_the_queue_is_never_appended() -> None:
    """Regression: loaded timers waited until the queue was empty, and then for an append or another event."""
    driver, stored = with_far_timers(strong=False, exactly_once=False)
    driver.deliver(("k", "through", 2_000))
    (passing,) = driver.take(SendDelivery)
    driver.watermark(1_500)
    (read,) = driver.take(ReadSegments)
    driver.handle(PartsRead({part: stored[part] for part in read.parts}))
    assert driver.take(SendDelivery) == [], "it is taken in when nothing is in line"
    driver.handle(Acknowledged(passing.delivery.token))
    driver.commit()
    assert driver.sent() == [("1002", 1_002)]


@pytest.mark.guarantee("G8", section="4.6, 6.1.3")
def test_loaded_timers_fire_though_the_queue_is_never_empty() -> None:
    driver, stored = with_far_timers(strong=False, exactly_once=False)
    driver.deliver(("k", "through", 2_000))
    (passing,) = driver.take(SendDelivery)
    driver.watermark(1_000)
    driver.deliver(("k", "next", 2_000))
    driver.watermark(1_500)
    (read,) = driver.take(ReadSegments)
    driver.handle(PartsRead({part: stored[part] for part in read.parts}))
    driver.handle(Acknowledged(passing.delivery.token))
    driver.commit()
    assert ("1002", 1_002) in driver.sent()
