"""Watermarks and ACKs trigger all waiting work, though they skip passes without work (G8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.core_protocol import InvariantError
from millwheel.model.time import Timestamp, hours, seconds
from millwheel.worker.interval import IntervalCore, IntervalSettings
from millwheel.worker.interval.pump import IntervalPump
from millwheel.worker.messages import (
    Acknowledged,
    AppendEntry,
    FlushStates,
    Report,
    SendDelivery,
    StatesFlushed,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver

LATER = seconds(10)
HOUR = hours(1)


class Program(mw.Computation[tuple[str, str], int]):
    """Follows the record's order: sets a timer, or fails the first time."""

    def __init__(self) -> None:
        self.failures = 1

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        if what == "event":
            ctx.set_timer(Timestamp(100), "t")
        elif what == "processing":
            ctx.set_timer(Timestamp(ctx.now + LATER), "t", domain=mw.TimeDomain.PROCESSING_TIME)
        elif what == "fail" and self.failures:
            self.failures -= 1
            raise ValueError("not yet")
        elif what == "produce":
            ctx.produce("out", "it")
        ctx.state += 1

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        ctx.produce("out", "fired")


def waiting(what: str, **options: Any) -> IntervalDriver:
    """A core in which the work of one record waits for the watermark or the time, and for no event."""
    driver = IntervalDriver(Program(), on_failure=mw.retry(initial=seconds(5)), **options)
    driver.deliver(("key", what, 10))
    driver.commit_all()
    driver.waiting.clear()
    return driver


CASES: dict[str, Callable[[], IntervalDriver]] = {
    "due timer": lambda: waiting("event"),
    "due processing-time timer": lambda: waiting("processing"),
    "retry of a blocked key": lambda: waiting("fail"),
    "weak commit": lambda: waiting("produce", strong=False, straggler_delay=LATER),
}


@pytest.mark.guarantee("G8", section="7.2")
@pytest.mark.parametrize("case", CASES)
def test_a_watermark_brings_on_what_waits_for_it(case: str) -> None:
    driver = CASES[case]()
    driver.now += LATER
    driver.watermark(1_000)
    assert driver.take(AppendEntry)


@pytest.mark.guarantee("G8", section="7.2")
@pytest.mark.parametrize("case", CASES)
def test_a_pass_skipped_with_work_is_a_broken_invariant(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = CASES[case]()
    monkeypatch.setattr(IntervalPump, "is_at_rest", lambda self: True)
    driver.now += LATER
    with pytest.raises(InvariantError, match="G8"):
        driver.watermark(1_000)


@pytest.mark.guarantee("G8", section="7.2")
def test_a_watermark_is_reported_when_no_pass_has_work() -> None:
    driver = waiting("count")
    driver.watermark(1_000)
    assert [(one.output, one.input) for one in driver.take(Report)] == [(1_000, 1_000)]
    assert not driver.waiting


@pytest.mark.guarantee("G8", section="7.2")
def test_a_watermark_keeps_the_deadline_of_dirty_rows() -> None:
    driver = waiting("count")
    deadline = driver.core.next_deadline()
    assert deadline is not None
    driver.now += 1
    driver.watermark(1_000)
    assert driver.core.next_deadline() == deadline
    assert not driver.take(SendDelivery)


@pytest.mark.guarantee("G8", section="6.1.3")
def test_an_ack_of_a_straggler_is_journaled_at_once() -> None:
    driver = IntervalDriver(Program(), strong=False, straggler_delay=LATER)
    driver.deliver(("key", "produce", 10))
    (send,) = driver.take(SendDelivery)
    driver.now += LATER
    driver.watermark(1_000)
    driver.commit()
    driver.handle(Acknowledged(send.delivery.token, []))
    assert driver.take(AppendEntry)


@pytest.mark.guarantee("G8", section="4.6")
def test_an_ack_makes_room_for_records_that_wait() -> None:
    driver = IntervalDriver(Program(), settings=IntervalSettings(outbox_records=1))
    driver.deliver(("key", "produce", 10))
    driver.commit()
    (send,) = driver.take(SendDelivery)
    driver.deliver(("key", "produce", 20))
    assert not driver.take(AppendEntry), "the outbox is full"
    driver.handle(Acknowledged(send.delivery.token, []))
    assert driver.take(AppendEntry)


@pytest.mark.guarantee("G6", section="4.6")
def test_a_timer_that_waited_for_room_survives_a_clock_set_back() -> None:
    driver = IntervalDriver(Program(), settings=IntervalSettings(outbox_records=1))
    driver.now = 10 * HOUR
    driver.deliver(("key", "processing", 10))
    driver.deliver(("other", "produce", 5))
    driver.commit_all()
    (send,) = driver.take(SendDelivery)
    driver.now += 2 * LATER
    for _ in range(2):  # the timer is due, and waits for room in the outbox; rows are flushed
        driver.handle(Tick())
        for flush in driver.take(FlushStates):
            driver.handle(StatesFlushed(flush.number))
    assert driver.core.next_deadline() is None
    driver.now -= 3 * HOUR
    driver.handle(Acknowledged(send.delivery.token, ()))
    deadline = driver.core.next_deadline()
    assert deadline is not None
    driver.now = deadline
    driver.handle(Tick())
    driver.commit_all()
    assert ("fired", 10) in driver.sent()


@pytest.mark.guarantee("G8", section="6.1.2")
def test_a_batch_behind_an_append_is_committed_after_it() -> None:
    driver = IntervalDriver(Program())
    driver.deliver(("key", "count", 10))
    driver.deliver(("other", "count", 20))
    driver.commit()
    assert driver.take(AppendEntry), "its end is the only event that the second batch waits for"


@pytest.mark.guarantee("G1", section="6.1.3")
def test_duplicates_behind_an_append_are_counted_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IntervalCore, "check_invariants", lambda self: None)  # it runs the passes, and they count
    driver = IntervalDriver(Program())
    driver.deliver(("key", "count", 10))
    driver.commit_all()
    driver.deliver(("other", "count", 20))
    driver.position = 0
    driver.deliver(("key", "count", 10))
    counts = driver.state.journal.counts
    assert counts.duplicates == 0, "the commit in flight was sealed before"
    driver.commit()
    assert (counts.records, counts.duplicates) == (2, 1)


@pytest.mark.guarantee("G8", section="6.1.2")
def test_an_append_without_more_work_leaves_the_deadline() -> None:
    driver = IntervalDriver(Program())
    driver.deliver(("key", "count", 10))
    assert driver.core.next_deadline() is None, "rows are not written while an append is in flight"
    driver.commit()
    assert driver.core.next_deadline() is not None
    driver.core.check_invariants()
