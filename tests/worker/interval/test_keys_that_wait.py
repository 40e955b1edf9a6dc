"""Regressions: keys that failed, or wait for their row or hook, and the order and progress of everything else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.time import Timestamp, seconds
from millwheel.store.contract import StateRow
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import AsyncHook, GiveUp, HookFailed, HookFinished, ReadStates, StatesRead, Tick
from tests.worker.interval.solo import Solo


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
    solo = Solo(log, on_failure=mw.retry(initial=seconds(1)))
    solo.deliver(("k", "bad", 1))
    solo.deliver(("k", "second", 2))
    solo.commit_all()
    log.broken = False
    solo.now += seconds(2)
    solo.deliver(("k", "third", 3))
    solo.commit_all()
    assert solo.sent() == [("bad", 1), ("bad,second", 2), ("bad,second,third", 3)]


@pytest.mark.guarantee("G13")
def test_a_batch_of_cache_misses_does_not_stop_the_interval() -> None:
    """Regression: records that waited for rows counted in the batch.

    It was full without any work, and never committed.
    """
    settings = IntervalSettings(batch_records=4)
    solo = Solo(Log(), settings=settings)
    solo.state.cells.evicted = True
    solo.deliver(*[(f"k{n}", "x", n) for n in range(10)])
    for _ in range(10):
        for read in solo.take(ReadStates):
            solo.handle(StatesRead(read.keys, [None] * len(read.keys)))
        solo.commit_all()
    assert solo.state.intake.records == 0
    assert len(solo.sent()) == 10


@pytest.mark.guarantee("G3", section="6.2")
def test_a_deposed_owners_hooks_never_see_its_successors_rows() -> None:
    """Regression: a timer fired a second time, on the state that its first firing had left."""
    solo = Solo(Log())
    solo.deliver(("j", "x", 1))
    solo.commit_all()
    solo.state.cells.evicted = True
    solo.deliver(("k", "x", 2), ("i", "x", 3))
    keys = [key for read in solo.take(ReadStates) for key in read.keys]
    stored = StateRow(b"k", solo.state.committed + 1, msgspec.msgpack.encode(["y"]))
    solo.handle(StatesRead(keys, [stored if key == b"k" else None for key in keys]))
    (given_up,) = solo.take(GiveUp)
    assert "another owner has written the row of key b'k', as of commit 2" in given_up.reason
    solo.commit_all()
    assert solo.sent() == [("x", 1)]


@pytest.mark.guarantee("G13")
def test_a_failing_hook_with_large_output_stops_no_other_key() -> None:
    """Regression: the output of the failed hook still filled the batch, which was empty. So no hook ran any more."""
    solo = Solo(Log())
    solo.deliver(("k", "loud", 1))
    solo.deliver(("j", "fine", 2))
    solo.commit_all()
    assert solo.sent() == [("fine", 2)]


def test_a_too_large_state_fails_by_name_and_counts_attempts() -> None:
    """Regression: the hook itself succeeded, which reset the count of failures.

    So the dead letter was never written.
    """
    solo = Solo(Log(), on_failure=mw.dead_letter(after=3, initial=seconds(1)))
    solo.deliver(("k", "huge", 1), ("j", "fine", 2))
    for _ in range(3):
        solo.commit_all()
        solo.now += seconds(10)
        solo.handle(Tick())
    solo.commit_all()
    failures = solo.take(HookFailed)
    assert [failure.message.partition("attempt ")[2][:1] for failure in failures] == ["1", "2", "3"]
    assert "the state of key 'k'" in failures[0].message
    assert solo.state.counts.dead_letters == 1
    assert solo.state.intake.records == 0


@pytest.mark.guarantee("G14", section="4.5")
def test_a_late_record_of_a_waiting_key_is_dropped_as_usual() -> None:
    """Regression: after a failure of its key the record ran alone.

    It reached user code under any policy, and was counted each time.
    """
    log = Log()
    solo = Solo(log, late=mw.Late.DROP, on_failure=mw.retry(initial=seconds(1)))
    solo.watermark(100)
    solo.deliver(("k", "good", 100), ("k", "late", 5), ("k", "bad", 101))
    for _ in range(4):
        solo.commit_all()
        solo.now += seconds(10)
        solo.handle(Tick())
    log.broken = False
    solo.now += seconds(100)
    solo.handle(Tick())
    solo.commit_all()
    assert solo.sent() == [("good", 100), ("good,bad", 101)]
    assert solo.state.counts.late == 1
    assert solo.state.counts.records == 3


@pytest.mark.guarantee("G14", section="4.5")
def test_dropped_records_read_no_row_and_fill_their_commit() -> None:
    solo = Solo(Log(), late=mw.Late.DROP, settings=IntervalSettings(batch_records=2))
    solo.state.cells.evicted = True
    solo.watermark(100)
    solo.deliver(*[(f"k{number}", "late", 5) for number in range(5)])
    assert solo.take(ReadStates) == []
    assert solo.commit_all() == 3
    assert (solo.state.counts.records, solo.state.counts.late, len(solo.state.cells)) == (5, 5, 0)


def test_filtered_records_read_no_row_and_fill_their_commit() -> None:
    solo = Solo(Log(), keep=lambda value: value[1] != "no", settings=IntervalSettings(batch_records=2))
    solo.state.cells.evicted = True
    solo.deliver(*[(f"k{number}", "no", number) for number in range(5)])
    assert solo.take(ReadStates) == []
    assert solo.commit_all() == 3
    assert (solo.state.counts.records, solo.state.intake.records, len(solo.state.cells)) == (5, 0, 0)


def test_a_filter_that_raises_fails_its_record_with_its_row() -> None:
    """The dead letter is committed with the key's state, and later records find this state."""
    solo = Solo(Log(), keep=lambda value: 1 // (value[1] != "bad") > 0, on_failure=mw.dead_letter(after=1))
    solo.state.cells.evicted = True
    solo.deliver(("k", "bad", 1), ("k", "x", 2))
    (read,) = solo.take(ReadStates)
    assert read.keys == [b"k"]
    assert solo.take(HookFailed) == []
    solo.handle(StatesRead(read.keys, [StateRow(b"k", solo.state.committed, msgspec.msgpack.encode(["y"]))]))
    solo.commit_all()
    assert "ZeroDivisionError" in solo.take(HookFailed)[0].message
    assert solo.state.counts.dead_letters == 1
    assert solo.sent()[-1] == ("y,x", 2)


class Waiting(mw.Computation[tuple[str, str], list[str]]):
    """Its hooks wait."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        self.seen.append(record.value[1])
        ctx.set_timer(Timestamp(record.timestamp + 1), record.value[1])

    async def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        self.seen.append(f"timer {timer.timestamp}")


def run_hooks(solo: Solo) -> int:
    """End the hooks that run; returns how many there were."""
    hooks = solo.take(AsyncHook)
    for hook in hooks:
        with pytest.raises(StopIteration):
            hook.coroutine.send(None)
    for hook in hooks:
        solo.handle(HookFinished(hook.hook, None))
    return len(hooks)


@pytest.mark.guarantee("G13")
def test_asynchronous_hooks_run_at_once_only_up_to_the_setting() -> None:
    """Regression: the bound was not applied, so a delivery of 8,000 keys started 8,000 hooks."""
    solo = Solo(Waiting(), settings=IntervalSettings(async_hooks=3))
    solo.deliver(*[(f"k{n}", str(n), n) for n in range(10)])
    most = 0
    while hooks := run_hooks(solo):
        most = max(most, hooks)
        solo.commit_all()
    assert most == 3
    assert solo.state.intake.records == 0


@pytest.mark.guarantee("G8", section="4.6")
def test_due_timers_of_a_busy_key_do_not_wait_behind_its_records() -> None:
    """Regression: a key with asynchronous hooks fired its timers only when none of its records waited.

    That may never happen.
    """
    waiting = Waiting()
    solo = Solo(waiting)
    solo.deliver(("k", "0", 0))
    run_hooks(solo)
    solo.commit_all()
    for number in range(5):
        solo.deliver(("k", f"later {number}", 1_000 + number))
    solo.watermark(500)
    for _ in range(3):
        run_hooks(solo)
        solo.commit_all()
    assert "timer 1" in waiting.seen[:4]
    while run_hooks(solo):
        solo.commit_all()


def test_alarms_that_wait_for_something_else_do_not_ring_again() -> None:
    """Regression: the worker looped without a pause. A due timer waited for its key, or rows waited for a commit."""

    class Rings(mw.Computation[tuple[str, str], list[str]]):
        def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
            ctx.state.append("x")
            ctx.set_timer(Timestamp(ctx.now + 10), "ring", domain=mw.TimeDomain.PROCESSING_TIME)

        def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
            pass

    solo = Solo(Rings(), settings=IntervalSettings(flush_interval=5))
    solo.deliver(("k", "x", 1))
    solo.commit_all()
    solo.deliver(("k", "x", 2))
    solo.deliver(("k", "x", 3))
    solo.now += 100
    solo.handle(Tick())
    alarm: Any = solo.core.next_deadline()
    assert alarm is None or alarm > solo.now


@pytest.mark.guarantee("G8", section="4.5")
def test_many_deliveries_of_a_blocked_key_take_no_event_each() -> None:
    """Regression: with a full outbox, each event looked at one delivery.

    Deliveries of other keys waited behind those of the blocked key.
    """
    solo = Solo(
        Log(), settings=IntervalSettings(batch_records=1, outbox_records=1), on_failure=mw.retry(initial=seconds(20))
    )
    solo.watermark(100)
    solo.deliver(("blocked", "bad", 50))
    solo.deliver(("k0", "fills the outbox", 50))
    solo.commit_all()
    solo.deliver(("k1", "in flight", 60))
    solo.deliver(("k2", "next batch", 60))
    for number in range(9):
        solo.deliver(("blocked", str(number), 10))
    solo.deliver(("k3", "behind them", 60))
    solo.commit_all()
    assert solo.sent() == [("fills the outbox", 50), ("in flight", 60), ("next batch", 60), ("behind them", 60)]
