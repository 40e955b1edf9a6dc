"""While the outbox is full, timers that do not hold the watermark wait for its ACKs (G13; sections 4.5, 4.6)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.time import Timestamp
from millwheel.worker.interval import HookMeter, IntervalSettings
from millwheel.worker.interval.hook_meter import BatchTime
from millwheel.worker.interval.intake import QueuedRecords
from millwheel.worker.interval.timers import TimerTable
from millwheel.worker.messages import Acknowledged, AsyncHook, HookFinished, SendDelivery, Tick
from tests.worker.interval.driver import IntervalDriver


class Windows(mw.Computation[tuple[str, str], list[str]]):
    """Keeps records. "at N" sets a timer, "wall N" a processing-time timer.

    A timer produces everything that its key kept.
    """

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        what, _, at = record.value[1].partition(" ")
        ctx.state.append(record.value[1])
        if what == "at":
            ctx.set_timer(Timestamp(int(at)), at)
        elif what == "wall":
            ctx.set_timer(Timestamp(int(at)), at, domain=mw.TimeDomain.PROCESSING_TIME)
        elif what == "say":
            ctx.produce("out", record.value[1])

    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        ctx.produce("out", f"{ctx.key} {len(ctx.state)}")


def acked(driver: IntervalDriver) -> list[str]:
    """ACK everything that was sent. Returns the values."""
    sends = driver.take(SendDelivery)
    for send in sends:
        driver.handle(Acknowledged(send.delivery.token))
    return [msgspec.msgpack.decode(value) for send in sends for value in send.delivery.values]


def windows(count: int, **settings: Any) -> IntervalDriver:
    """Windows of ``count`` keys, which end at 100, 101 and so on."""
    driver = IntervalDriver(Windows(), settings=IntervalSettings(outbox_records=3, batch_records=2, **settings))
    driver.deliver(*((f"k{number:02}", f"at {100 + number}", 50) for number in range(count)))
    driver.commit_all()
    return driver


@pytest.mark.guarantee("G13", section="4.6")
def test_timers_due_together_produce_only_what_the_outbox_takes() -> None:
    """All timers fired, commit after commit. So the productions of a million windows were in memory at once."""
    driver = windows(40)
    driver.watermark(1_000)
    driver.commit_all()
    assert driver.state.outbox.unacked.records <= 3 + 2 * 2
    assert driver.output <= 100
    fired: list[str] = []
    while values := acked(driver):
        fired += values
        assert driver.state.outbox.unacked.records <= 3 + 2 * 2
        driver.commit_all()
    assert fired == [f"k{number:02} 1" for number in range(40)]
    assert driver.output == 1_000


@pytest.mark.guarantee("G13", section="4.6")
def test_processing_timers_too_wait_for_a_full_outbox() -> None:
    driver = IntervalDriver(Windows(), settings=IntervalSettings(outbox_records=3, batch_records=2))
    driver.watermark(40)
    driver.deliver(*((f"j{number}", "say", 50) for number in range(4)))
    driver.commit_all()
    driver.deliver(*((f"k{number:02}", "wall 1000100", 50) for number in range(20)))
    driver.watermark(50)
    driver.commit_all()
    timers = driver.state.timers.count
    assert timers == 20
    driver.now = 1_000_200
    driver.handle(Tick())
    driver.commit_all()
    assert driver.state.timers.count == timers
    while acked(driver):
        assert driver.state.outbox.unacked.records <= 3 + 2 * 2
        driver.commit_all()
    assert driver.state.timers.count == 0


@pytest.mark.guarantee("G8", section="4.5")
def test_a_timer_holding_the_watermark_fires_with_a_full_outbox() -> None:
    """The consumer may be full, and then accepts only what the timer produces."""
    driver = windows(1)
    driver.deliver(*((f"j{number}", "say", 500) for number in range(6)))
    driver.commit_all()
    driver.watermark(100)
    driver.commit_all()
    assert ("k00 1", 100) in driver.sent()
    assert driver.state.timers.count == 0


@pytest.mark.guarantee("G5", section="4.1")
def test_a_record_that_holds_the_watermark_runs_after_due_timers() -> None:
    """Timers of other keys wait, because the watermark does not wait for their productions."""
    driver = windows(10)
    driver.watermark(1_000)
    driver.commit_all()
    waiting = driver.state.timers.count
    assert waiting > 5
    driver.deliver(("k09", "late", 20))
    driver.commit_all()
    assert driver.state.timers.count == waiting - 1
    assert driver.sent()[-1] == ("k09 1", 109), "its timer has not seen the record"
    assert driver.state.intake.records == 0


@pytest.mark.guarantee("G5", section="4.1")
def test_a_quick_timer_lets_no_record_overtake_another_timer() -> None:
    """The timers of the records that fit into a batch fire first. They were quick, so more records seemed to fit.

    Those ran before the due timers of their keys.
    """
    meter = HookMeter(batch_time=BatchTime(300.5))
    driver = IntervalDriver(Windows(), settings=IntervalSettings(outbox_records=3), meter=meter)
    last = [f"z{number}" for number in range(10)]
    driver.deliver(*((f"j{number}", "say", 60) for number in range(4)))
    driver.deliver(*((key, "at 100", 60) for key in ("a", *last)))
    driver.commit_all()
    driver.watermark(1_000)
    driver.commit_all()
    assert driver.state.timers.count == 11
    driver.sent()
    meter.records.pace = 1.0
    driver.deliver(*((key, "late", 20) for key in ("a", *(f"f{number}" for number in range(299)), *last)))
    driver.commit_all()
    assert [value for value, _ in driver.sent()] == ["a 1", *(f"{key} 1" for key in last)]


@pytest.mark.guarantee("G8", section="4.5")
def test_a_timer_holding_below_all_productions_fires_when_full() -> None:
    """A timer before it did not hold the watermark, and waited for ACKs. A consumer that was full waited for the
    second timer's hold, and took nothing in."""

    class Held(mw.Computation[tuple[str, str], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            at, hold = map(int, record.value[1].split())
            ctx.set_timer(Timestamp(at), "t", hold=Timestamp(hold))

        def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
            ctx.produce("out", f"{ctx.key} {timer.timestamp}")

    driver = IntervalDriver(Held(), settings=IntervalSettings(outbox_records=3, batch_records=2))
    early = [(f"a{number}", "100 100", 50) for number in range(4)]
    middle = [(f"b{number}", "200 200", 50) for number in range(4)]
    driver.deliver(*early, *middle, ("last", "300 60", 50))
    driver.commit_all()
    driver.watermark(1_000)
    driver.commit_all()
    assert driver.state.timers.count == 0
    assert driver.output == 100


class Failing(Windows):
    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        if ctx.key == "bad":
            raise RuntimeError("bad")
        super().process_timer(ctx, timer)


@pytest.mark.guarantee("G13", section="4.6")
def test_a_failing_timer_lets_no_other_fire_into_a_full_outbox() -> None:
    """The failing timer's time holds the watermark, and no other timer can release it."""
    driver = IntervalDriver(Failing(), settings=IntervalSettings(outbox_records=3, batch_records=2))
    driver.deliver(("bad", "at 90", 50), *((f"k{number:02}", f"at {100 + number}", 50) for number in range(40)))
    driver.commit_all()
    driver.watermark(1_000)
    driver.commit_all()
    assert len(driver.state.blocked.failing.oldest(9)) == 1
    assert driver.state.outbox.unacked.records <= 3 + 2 * 2


@pytest.mark.guarantee("G13", section="6.1.3")
def test_acks_to_be_journaled_fire_no_timer_into_a_full_outbox() -> None:
    """In weak computations, each ACK of a stored production holds the watermark until the journal has it."""
    driver = IntervalDriver(Windows(), strong=False, settings=IntervalSettings(outbox_records=4, batch_records=4))
    driver.deliver(*((f"k{number:03}", f"at {100 + number}", 50) for number in range(200)))
    driver.commit_all()
    driver.watermark(1_000)
    driver.commit_all()
    most, sends = driver.state.outbox.unacked.records, list[SendDelivery]()
    while sends := sends + driver.take(SendDelivery):
        driver.handle(Acknowledged(sends.pop(0).delivery.token))
        driver.commit_all()
        most = max(most, driver.state.outbox.unacked.records)
    assert driver.state.timers.count == 0
    assert most <= 4 + 2 * 4


class Waiting(mw.Computation[tuple[str, str], None]):
    async def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "say":
            ctx.produce("out", "said")

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        raise AssertionError("no timer is set")


def ended(driver: IntervalDriver) -> None:
    """Run the asynchronous hooks that have begun, one after the other, until none is left."""
    while hooks := driver.take(AsyncHook):
        for hook in hooks:
            with contextlib.suppress(StopIteration):
                hook.coroutine.send(None)
            driver.handle(HookFinished(hook.hook, None))
        driver.commit_all()


@pytest.mark.guarantee("G13")
def test_with_a_full_outbox_a_hook_checks_its_own_keys_timers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regression: each hook of a delivery checked the timers of all remaining keys, which is quadratic."""
    looks = 0
    due_of_key = TimerTable.due_of_key

    def counted(self: TimerTable, key: bytes, limit: int) -> Any:
        nonlocal looks
        looks += 1
        return due_of_key(self, key, limit)

    driver = IntervalDriver(Waiting(), settings=IntervalSettings(outbox_records=1))
    driver.watermark(50)
    driver.deliver(("s", "say", 50))
    ended(driver)
    assert driver.outbox_full
    monkeypatch.setattr(TimerTable, "due_of_key", counted)
    driver.deliver(*((f"k{number}", "", 50) for number in range(2_000)))
    ended(driver)
    assert driver.state.intake.records == 0
    assert looks <= 10 * 2_000


@pytest.mark.guarantee("G8", section="4.5")
def test_a_timer_clearing_a_keys_hold_fires_with_a_full_outbox() -> None:
    class Holding(mw.Computation[tuple[str, str], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            if ctx.key == "last":
                ctx.set_hold(Timestamp(60))
            ctx.set_timer(Timestamp(int(record.value[1])), "t")

        def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
            ctx.produce("out", f"{ctx.key} {timer.timestamp}")
            ctx.clear_hold()

    driver = IntervalDriver(Holding(), settings=IntervalSettings(outbox_records=3, batch_records=2))
    driver.deliver(*((f"a{number}", "100", 50) for number in range(9)), ("last", "300", 60))
    driver.commit_all()
    driver.watermark(1_000)
    driver.commit_all()
    assert driver.state.timers.count == 0
    assert driver.output == 100


class Unsearched(deque[QueuedRecords]):
    """A queue that no code may search."""

    def __iter__(self) -> Iterator[QueuedRecords]:
        raise AssertionError("the queue is searched")


class Passing(mw.Computation[tuple[str, str], None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", record.value[1])


@pytest.mark.guarantee("G13", section="4.1")
def test_a_full_outbox_lets_no_event_search_a_queue_that_waits() -> None:
    """Each delivery looked through the queue for a record that holds the watermark: 12,000 of them took 7 s."""
    driver = IntervalDriver(Passing(), settings=IntervalSettings(outbox_records=1))
    driver.watermark(5)
    driver.deliver(("k", "first", 10))
    driver.commit_all()
    assert driver.outbox_full
    driver.state.intake.queue = Unsearched()
    driver.deliver(("k", "second", 20))
    driver.watermark(6)
    driver.state.intake.queue = deque([driver.state.intake.queue[0]])
    driver.deliver(("j", "held", 6))
    driver.commit_all()
    assert [value for value, _ in driver.sent()] == ["first", "held"], "what holds the watermark is found"
