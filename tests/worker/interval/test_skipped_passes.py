"""Watermarks and ACKs trigger all waiting work, though they skip passes without work (G8)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.core_protocol import InvariantError
from millwheel.model.time import Timestamp, hours, seconds
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    AppendEntry,
    FlushStates,
    Report,
    SendDelivery,
    StatesFlushed,
    Tick,
)
from tests.worker.interval.solo import Solo

LATER = seconds(10)
HOUR = hours(1)


class Program(mw.Computation[tuple[str, str], int]):
    """Does what the record says: sets a timer, or fails the first time."""

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


def waiting(what: str, **options: Any) -> Solo:
    """A core in which the work of one record waits for the watermark or the time, and for no event."""
    solo = Solo(Program(), on_failure=mw.retry(initial=seconds(5)), **options)
    solo.deliver(("key", what, 10))
    solo.commit_all()
    solo.waiting.clear()
    return solo


CASES: dict[str, Callable[[], Solo]] = {
    "due timer": lambda: waiting("event"),
    "due processing-time timer": lambda: waiting("processing"),
    "retry of a blocked key": lambda: waiting("fail"),
    "weak commit": lambda: waiting("produce", strong=False, straggler_delay=LATER),
}


@pytest.mark.guarantee("G8", section="7.2")
@pytest.mark.parametrize("case", CASES)
def test_a_watermark_brings_on_what_waits_for_it(case: str) -> None:
    solo = CASES[case]()
    solo.now += LATER
    solo.watermark(1_000)
    assert solo.take(AppendEntry)


@pytest.mark.guarantee("G8", section="7.2")
@pytest.mark.parametrize("case", CASES)
def test_a_pass_skipped_with_work_is_a_broken_invariant(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    solo = CASES[case]()
    monkeypatch.setattr(solo.core, "_rests", lambda: True)
    solo.now += LATER
    with pytest.raises(InvariantError, match="G8"):
        solo.watermark(1_000)


@pytest.mark.guarantee("G8", section="7.2")
def test_a_watermark_is_reported_when_no_pass_has_work() -> None:
    solo = waiting("count")
    solo.watermark(1_000)
    assert [(one.output, one.input) for one in solo.take(Report)] == [(1_000, 1_000)]
    assert not solo.waiting


@pytest.mark.guarantee("G8", section="7.2")
def test_a_watermark_keeps_the_deadline_of_dirty_rows() -> None:
    solo = waiting("count")
    deadline = solo.core.next_deadline()
    assert deadline is not None
    solo.now += 1
    solo.watermark(1_000)
    assert solo.core.next_deadline() == deadline
    assert not solo.take(SendDelivery)


@pytest.mark.guarantee("G8", section="6.1.3")
def test_an_ack_of_a_straggler_is_journaled_at_once() -> None:
    solo = Solo(Program(), strong=False, straggler_delay=LATER)
    solo.deliver(("key", "produce", 10))
    (send,) = solo.take(SendDelivery)
    solo.now += LATER
    solo.watermark(1_000)
    solo.commit()
    solo.handle(Acknowledged(send.delivery.token, []))
    assert solo.take(AppendEntry)


@pytest.mark.guarantee("G8", section="4.6")
def test_an_ack_makes_room_for_records_that_wait() -> None:
    solo = Solo(Program(), settings=IntervalSettings(outbox_records=1))
    solo.deliver(("key", "produce", 10))
    solo.commit()
    (send,) = solo.take(SendDelivery)
    solo.deliver(("key", "produce", 20))
    assert not solo.take(AppendEntry), "the outbox is full"
    solo.handle(Acknowledged(send.delivery.token, []))
    assert solo.take(AppendEntry)


@pytest.mark.guarantee("G6", section="4.6")
def test_a_timer_that_waited_for_room_survives_a_clock_set_back() -> None:
    solo = Solo(Program(), settings=IntervalSettings(outbox_records=1))
    solo.now = 10 * HOUR
    solo.deliver(("key", "processing", 10))
    solo.deliver(("other", "produce", 5))
    solo.commit_all()
    (send,) = solo.take(SendDelivery)
    solo.now += 2 * LATER
    for _ in range(2):  # the timer is due, and waits for room in the outbox; rows are flushed
        solo.handle(Tick())
        for flush in solo.take(FlushStates):
            solo.handle(StatesFlushed(flush.number))
    assert solo.core.next_deadline() is None
    solo.now -= 3 * HOUR
    solo.handle(Acknowledged(send.delivery.token, ()))
    deadline = solo.core.next_deadline()
    assert deadline is not None
    solo.now = deadline
    solo.handle(Tick())
    solo.commit_all()
    assert ("fired", 10) in solo.sent()
