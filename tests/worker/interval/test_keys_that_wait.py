"""Regressions: keys that failed, or wait for their row or hook, and the order and progress of everything else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.time import Timestamp, seconds
from millwheel.store.contract import StateRow
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    AsyncHook,
    GiveUp,
    HookFailed,
    HookFinished,
    ReadStates,
    SendDelivery,
    StatesRead,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver


class Log(mw.Computation[tuple[str, str], list[str]]):
    """Produces each record. "bad" fails while ``broken``, and "large" leaves a state beyond the limit."""

    def __init__(self) -> None:
        self.broken = True

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        ctx.state.append(what)
        if what == "loud":
            for _ in range(3):
                ctx.produce("out", "x" * 1_000_000)
        if what == "huge":
            ctx.state.append("x" * (4 << 20))
        if what in ("bad", "loud") and self.broken:
            raise ValueError(what)
        ctx.produce("out", ",".join(ctx.state)[:100])

    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        raise AssertionError("no record comes here")


@pytest.mark.guarantee("G5", section="4.1")
def test_records_behind_a_failed_one_wait_also_during_its_retry() -> None:
    """Regression: a successful retry added its context to the batch. A newer record found it there and ran first."""
    log = Log()
    driver = IntervalDriver(log, on_failure=mw.retry(initial=seconds(1)))
    driver.deliver(("k", "bad", 1))
    driver.deliver(("k", "second", 2))
    driver.commit_all()
    log.broken = False
    driver.now += seconds(2)
    driver.deliver(("k", "third", 3))
    driver.commit_all()
    assert driver.sent() == [("bad", 1), ("bad,second", 2), ("bad,second,third", 3)]


@pytest.mark.guarantee("G8", section="4.1")
def test_progress_is_reported_if_the_last_record_fails_later() -> None:
    """The others were not reported, and held the watermark, until the record that failed had been committed."""
    small = IntervalSettings(batch_records=1, outbox_records=1)
    driver = IntervalDriver(Log(), settings=small, on_failure=mw.retry(initial=seconds(1)))
    delivery = driver.deliver(("k", "", 2), ("bad", "bad", 50))
    driver.commit_all()
    assert not driver.take(HookFailed), "the outbox is full, so the record waits in the queue"
    for send in driver.take(SendDelivery):
        driver.handle(Acknowledged(send.delivery.token))
    assert len(driver.take(HookFailed)) == 1
    (answer,) = (one for one in driver.take(AnswerDelivery) if one.delivery is delivery)
    assert answer.indexes == [1]
    driver.watermark(100)
    assert driver.output == 50


@pytest.mark.guarantee("G13")
def test_a_batch_of_cache_misses_does_not_stop_the_interval() -> None:
    """Regression: records that waited for rows counted in the batch.

    It was full without any work, and never committed.
    """
    settings = IntervalSettings(batch_records=4)
    driver = IntervalDriver(Log(), settings=settings)
    driver.state.cells.evicted = True
    driver.deliver(*[(f"k{n}", "x", n) for n in range(10)])
    for _ in range(10):
        for read in driver.take(ReadStates):
            driver.handle(StatesRead(read.keys, [None] * len(read.keys)))
        driver.commit_all()
    assert driver.state.intake.records == 0
    assert len(driver.sent()) == 10


@pytest.mark.guarantee("G3", section="6.2")
def test_a_deposed_owners_hooks_never_see_its_successors_rows() -> None:
    """Regression: a timer fired a second time, on the state that its first firing had left."""
    driver = IntervalDriver(Log())
    driver.deliver(("j", "x", 1))
    driver.commit_all()
    driver.state.cells.evicted = True
    driver.deliver(("k", "x", 2), ("i", "x", 3))
    keys = [key for read in driver.take(ReadStates) for key in read.keys]
    stored = StateRow(b"k", driver.state.committed + 1, msgspec.msgpack.encode(["y"]))
    driver.handle(StatesRead(keys, [stored if key == b"k" else None for key in keys]))
    (given_up,) = driver.take(GiveUp)
    assert "another owner has written the row of key b'k', as of commit 2" in given_up.reason
    driver.commit_all()
    assert driver.sent() == [("x", 1)]


@pytest.mark.guarantee("G13")
def test_a_failing_hook_with_large_output_stops_no_other_key() -> None:
    """Regression: the output of the failed hook still filled the batch, which was empty. So no hook ran any more."""
    driver = IntervalDriver(Log())
    driver.deliver(("k", "loud", 1))
    driver.deliver(("j", "fine", 2))
    driver.commit_all()
    assert driver.sent() == [("fine", 2)]


def test_a_too_large_state_fails_by_name_and_counts_attempts() -> None:
    """Regression: the hook itself succeeded, which reset the count of failures.

    So the dead letter was never written.
    """
    driver = IntervalDriver(Log(), on_failure=mw.dead_letter(after=3, initial=seconds(1)))
    driver.deliver(("k", "huge", 1), ("j", "fine", 2))
    for _ in range(3):
        driver.commit_all()
        driver.now += seconds(10)
        driver.handle(Tick())
    driver.commit_all()
    failures = driver.take(HookFailed)
    assert [failure.message.partition("attempt ")[2][:1] for failure in failures] == ["1", "2", "3"]
    assert "the state of key 'k'" in failures[0].message
    assert driver.state.counts.dead_letters == 1
    assert driver.state.intake.records == 0


@pytest.mark.guarantee("G14", section="4.5")
def test_a_late_record_of_a_waiting_key_is_dropped_as_usual() -> None:
    """Regression: after a failure of its key the record ran alone.

    It reached user code under any policy, and was counted each time.
    """
    log = Log()
    driver = IntervalDriver(log, late=mw.Late.DROP, on_failure=mw.retry(initial=seconds(1)))
    driver.watermark(100)
    driver.deliver(("k", "good", 100), ("k", "late", 5), ("k", "bad", 101))
    for _ in range(4):
        driver.commit_all()
        driver.now += seconds(10)
        driver.handle(Tick())
    log.broken = False
    driver.now += seconds(100)
    driver.handle(Tick())
    driver.commit_all()
    assert driver.sent() == [("good", 100), ("good,bad", 101)]
    assert driver.state.counts.late == 1
    assert driver.state.counts.records == 3


@pytest.mark.guarantee("G14", section="4.5")
def test_dropped_records_read_no_row_and_fill_their_commit() -> None:
    driver = IntervalDriver(Log(), late=mw.Late.DROP, settings=IntervalSettings(batch_records=2))
    driver.state.cells.evicted = True
    driver.watermark(100)
    driver.deliver(*[(f"k{number}", "late", 5) for number in range(5)])
    assert driver.take(ReadStates) == []
    assert driver.commit_all() == 3
    assert (driver.state.counts.records, driver.state.counts.late, len(driver.state.cells)) == (5, 5, 0)


def test_filtered_records_read_no_row_and_fill_their_commit() -> None:
    driver = IntervalDriver(Log(), keep=lambda value: value[1] != "no", settings=IntervalSettings(batch_records=2))
    driver.state.cells.evicted = True
    driver.deliver(*[(f"k{number}", "no", number) for number in range(5)])
    assert driver.take(ReadStates) == []
    assert driver.commit_all() == 3
    assert (driver.state.counts.records, driver.state.intake.records, len(driver.state.cells)) == (5, 0, 0)


def test_a_filter_that_raises_fails_its_record_with_its_row() -> None:
    """The dead letter is committed with the key's state, and later records find this state."""
    driver = IntervalDriver(Log(), keep=lambda value: 1 // (value[1] != "bad") > 0, on_failure=mw.dead_letter(after=1))
    driver.state.cells.evicted = True
    driver.deliver(("k", "bad", 1), ("k", "x", 2))
    (read,) = driver.take(ReadStates)
    assert read.keys == [b"k"]
    assert driver.take(HookFailed) == []
    driver.handle(StatesRead(read.keys, [StateRow(b"k", driver.state.committed, msgspec.msgpack.encode(["y"]))]))
    driver.commit_all()
    assert "ZeroDivisionError" in driver.take(HookFailed)[0].message
    assert driver.state.counts.dead_letters == 1
    assert driver.sent()[-1] == ("y,x", 2)


class Waiting(mw.Computation[tuple[str, str], list[str]]):
    """Its hooks wait."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        self.seen.append(record.value[1])
        ctx.set_timer(Timestamp(record.timestamp + 1), record.value[1])

    async def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        self.seen.append(f"timer {timer.timestamp}")


def run_hooks(driver: IntervalDriver) -> int:
    """End the running hooks. Returns their number."""
    hooks = driver.take(AsyncHook)
    for hook in hooks:
        with pytest.raises(StopIteration):
            hook.coroutine.send(None)
    for hook in hooks:
        driver.handle(HookFinished(hook.hook, None))
    return len(hooks)


@pytest.mark.guarantee("G13")
def test_asynchronous_hooks_run_at_once_only_up_to_the_setting() -> None:
    """Regression: the bound was not applied, so a delivery of 8,000 keys started 8,000 hooks."""
    driver = IntervalDriver(Waiting(), settings=IntervalSettings(async_hooks=3))
    driver.deliver(*[(f"k{n}", str(n), n) for n in range(10)])
    most = 0
    while hooks := run_hooks(driver):
        most = max(most, hooks)
        driver.commit_all()
    assert most == 3
    assert driver.state.intake.records == 0


@pytest.mark.guarantee("G8", section="4.6")
def test_due_timers_of_a_busy_key_do_not_wait_behind_its_records() -> None:
    """Regression: a key with asynchronous hooks fired its timers only when none of its records waited.

    That may never happen.
    """
    waiting = Waiting()
    driver = IntervalDriver(waiting)
    driver.deliver(("k", "0", 0))
    run_hooks(driver)
    driver.commit_all()
    for number in range(5):
        driver.deliver(("k", f"later {number}", 1_000 + number))
    driver.watermark(500)
    for _ in range(3):
        run_hooks(driver)
        driver.commit_all()
    assert "timer 1" in waiting.seen[:4]
    while run_hooks(driver):
        driver.commit_all()


def test_alarms_that_wait_for_something_else_do_not_ring_again() -> None:
    """Regression: the worker looped without a pause. A due timer waited for its key, or rows waited for a commit."""

    class Rings(mw.Computation[tuple[str, str], list[str]]):
        def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state.append("x")
            ctx.set_timer(Timestamp(ctx.now + 10), "ring", domain=mw.TimeDomain.PROCESSING_TIME)

        def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
            pass

    driver = IntervalDriver(Rings(), settings=IntervalSettings(flush_interval=5))
    driver.deliver(("k", "x", 1))
    driver.commit_all()
    driver.deliver(("k", "x", 2))
    driver.deliver(("k", "x", 3))
    driver.now += 100
    driver.handle(Tick())
    alarm: Any = driver.core.next_deadline()
    assert alarm is None or alarm > driver.now


@pytest.mark.guarantee("G8", section="4.5")
def test_many_deliveries_of_a_blocked_key_take_no_event_each() -> None:
    """Regression: with a full outbox, each event looked at one delivery.

    Deliveries of other keys waited behind those of the blocked key.
    """
    driver = IntervalDriver(
        Log(), settings=IntervalSettings(batch_records=1, outbox_records=1), on_failure=mw.retry(initial=seconds(20))
    )
    driver.watermark(100)
    driver.deliver(("blocked", "bad", 50))
    driver.deliver(("k0", "fills the outbox", 50))
    driver.commit_all()
    driver.deliver(("k1", "in flight", 60))
    driver.deliver(("k2", "next batch", 60))
    for number in range(9):
        driver.deliver(("blocked", str(number), 10))
    driver.deliver(("k3", "behind them", 60))
    driver.commit_all()
    assert driver.sent() == [("fills the outbox", 50), ("in flight", 60), ("next batch", 60), ("behind them", 60)]
