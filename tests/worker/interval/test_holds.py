"""Regressions: what holds the output watermark, and until when (4.5, 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.time import MAX_TIMESTAMP, Timestamp
from millwheel.sdk.errors import MillwheelError
from millwheel.worker.messages import Acknowledged, AsyncHook, HookFinished, Report, SendDelivery, Tick
from tests.worker.interval.driver import IntervalDriver

Do = Callable[[mw.Context[Any]], None]


class Scripted(mw.Computation[tuple[str, str], str | None]):
    """Calls the test's function."""

    def __init__(self, records: dict[str, Do], timer: Do) -> None:
        self.records = records
        self.timer = timer

    def process_record(self, ctx: mw.Context[Any], record: mw.Record[tuple[str, str]]) -> None:
        self.records[record.value[1]](ctx)

    def process_timer(self, ctx: mw.Context[Any], timer: mw.Timer) -> None:
        self.timer(ctx)


@pytest.mark.guarantee("G7", section="6.2")
@pytest.mark.parametrize(
    "change",
    [lambda ctx: ctx.set_timer(Timestamp(200), "t"), lambda ctx: ctx.cancel_timer("t")],
    ids=["move", "cancel"],
)
def test_a_moved_or_cancelled_timer_holds_until_it_is_journaled(change: Do) -> None:
    """Regression: the hold ended when the batch was sealed.

    A crash before the append restored the timer behind a watermark that consumers had seen.
    """
    hooks: dict[str, Do] = {"set": lambda ctx: ctx.set_timer(Timestamp(100), "t"), "change": change}
    driver = IntervalDriver(Scripted(hooks, lambda ctx: ctx.produce("out", "fired")))
    driver.deliver(("k", "set", 10))
    driver.commit()
    driver.watermark(90)
    driver.deliver(("k", "change", 500))
    driver.watermark(300)
    assert driver.output == 100
    taken_over = IntervalDriver(Scripted(hooks, lambda ctx: ctx.produce("out", "fired")), entries=driver.entries)
    taken_over.watermark(300)
    taken_over.commit_all()
    assert taken_over.sent() == [("fired", 100)]
    driver.commit_all()
    assert driver.output >= 200


@pytest.mark.guarantee("G7", section="4.6")
def test_a_timer_set_late_produces_no_earlier_than_its_setter() -> None:
    """Regression: a hook on time set a timer in the past.

    The timer produced behind a watermark that consumers had seen.
    """
    hooks: dict[str, Do] = {"set": lambda ctx: ctx.set_timer(Timestamp(5), "t")}
    driver = IntervalDriver(Scripted(hooks, lambda ctx: ctx.produce("out", "fired")))
    driver.watermark(90)
    driver.deliver(("k", "set", 100))
    driver.commit_all()
    assert driver.sent() == [("fired", 100)]
    assert driver.output == 90


def test_what_a_late_setter_causes_is_late() -> None:
    driver = IntervalDriver(
        Scripted({"set": lambda ctx: ctx.set_timer(Timestamp(5), "t")}, lambda ctx: ctx.produce("out", "fired"))
    )
    driver.watermark(90)
    driver.deliver(("k", "set", 3))
    driver.commit_all()
    assert driver.sent() == [("fired", 5)]


@pytest.mark.guarantee("G7", section="5.2")
def test_a_states_hold_lets_its_key_produce_from_there_on() -> None:
    """Regression: the hold kept the watermark, but the error still said that the hook may not produce so early."""

    def release(ctx: mw.Context[Any]) -> None:
        ctx.produce("out", "held", timestamp=Timestamp(50))
        ctx.clear_hold()

    hooks: dict[str, Do] = {
        "hold": lambda ctx: ctx.set_hold(Timestamp(50)),
        "release": release,
        "early": lambda ctx: ctx.produce("out", "early", timestamp=Timestamp(49)),
    }
    driver = IntervalDriver(Scripted(hooks, lambda ctx: None), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "hold", 60))
    driver.commit_all()
    driver.watermark(200)
    assert driver.output == 50
    driver.deliver(("k", "early", 300))
    driver.commit_all()
    assert driver.state.counts.dead_letters == 1
    driver.sent()
    driver.deliver(("k", "release", 300))
    assert driver.output == 50
    driver.commit_all()
    assert driver.sent() == [("held", 50)]
    assert driver.output == 50, "the production holds now"


@pytest.mark.guarantee("G7")
def test_a_state_hold_behind_the_watermark_has_its_setters_time() -> None:
    """Regression: a hold in the past kept the output watermark until the hold was cleared."""
    driver = IntervalDriver(Scripted({"hold": lambda ctx: ctx.set_hold(Timestamp(5))}, lambda ctx: None))
    driver.watermark(90)
    driver.deliver(("k", "hold", 100))
    driver.commit_all()
    driver.watermark(400)
    assert driver.output == 100
    taken_over = IntervalDriver(Scripted({}, lambda ctx: None), entries=driver.entries)
    taken_over.watermark(400)
    assert taken_over.output == 100


class Collected(mw.Computation[tuple[str, str], list[int]]):
    """Produces the records of its key by the clock, each no earlier than the watermark that its hook saw."""

    def process_record(self, ctx: mw.Context[list[int]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state.append(max(record.timestamp, ctx.watermark))
        at, hold = Timestamp(ctx.now + 1_000), Timestamp(min(ctx.state))
        ctx.set_timer(at, domain=mw.TimeDomain.PROCESSING_TIME, hold=hold)

    def process_timer(self, ctx: mw.Context[list[int]], timer: mw.Timer) -> None:
        for at in ctx.state:
            ctx.produce("out", "collected", timestamp=Timestamp(at))
        del ctx.state


@pytest.mark.guarantee("G7", section="7.2")
@pytest.mark.guarantee("G8", section="4.6")
def test_a_new_owner_shows_no_less_than_was_reported_before_it() -> None:
    """Regression: the former owner had reported 90 without a commit, and a late record showed the new owner's hooks 20.

    The hold at 20 was behind the reported watermark, so it became 100. The timer's production at 20 failed for ever.
    """
    driver = IntervalDriver(Collected(), accepted=90)
    driver.deliver(("k", "late", 20), ("k", "on time", 100))
    driver.commit_all()
    driver.watermark(200)
    assert driver.output == 90
    driver.now += 1_000
    driver.handle(Tick())
    driver.commit_all()
    assert driver.sent() == [("collected", 90), ("collected", 100)]


@pytest.mark.guarantee("G6", section="4.6")
def test_timers_at_the_end_of_time_fire_when_the_sources_finish() -> None:
    hooks: dict[str, Do] = {"set": lambda ctx: ctx.set_timer(MAX_TIMESTAMP, "end")}
    driver = IntervalDriver(Scripted(hooks, lambda ctx: ctx.produce("out", "fired")))
    driver.deliver(("k", "set", 1))
    driver.commit_all()
    driver.watermark(MAX_TIMESTAMP - 1)
    assert driver.sent() == []
    driver.watermark(MAX_TIMESTAMP)
    driver.commit_all()
    (send,) = driver.take(SendDelivery)
    assert send.delivery.timestamps == [MAX_TIMESTAMP - 1]
    assert driver.output == MAX_TIMESTAMP - 1, "what is under way for the end holds it back"
    driver.handle(Acknowledged(send.delivery.token))
    assert driver.output == MAX_TIMESTAMP


@pytest.mark.guarantee("G6", section="4.6")
def test_an_asynchronous_timer_at_the_end_of_time_fires() -> None:
    """Regression: the timer held one microsecond before the end, and its commit released the end.

    The interval stopped.
    """

    class AtTheEnd(mw.Computation[tuple[str, str], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            ctx.set_timer(MAX_TIMESTAMP, "end")

        async def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
            ctx.produce("out", "fired")

    driver = IntervalDriver(AtTheEnd())
    driver.deliver(("k", "set", 1))
    driver.commit_all()
    driver.watermark(MAX_TIMESTAMP)
    (hook,) = driver.take(AsyncHook)
    with pytest.raises(StopIteration):
        hook.coroutine.send(None)
    assert driver.output == MAX_TIMESTAMP - 1, "the hook that runs holds"
    driver.handle(HookFinished(hook.hook, None))
    driver.commit_all()
    (send,) = driver.take(SendDelivery)
    assert driver.output == MAX_TIMESTAMP - 1, "the production holds"
    driver.handle(Acknowledged(send.delivery.token))
    assert driver.output == MAX_TIMESTAMP


@pytest.mark.guarantee("G8", section="4.6")
def test_a_processing_timer_fired_after_the_end_keeps_its_time() -> None:
    """Regression: the timer produced at the end of time.

    No hold is possible there: consumers ended before the record came, and user code can set no timer.
    """
    hooks: dict[str, Do] = {
        "set": lambda ctx: ctx.set_timer(mw.Timestamp(ctx.now + 1_000), "t", domain=mw.TimeDomain.PROCESSING_TIME)
    }
    driver = IntervalDriver(Scripted(hooks, lambda ctx: ctx.produce("out", "fired")))
    driver.deliver(("k", "set", 100))
    driver.commit_all()
    driver.watermark(MAX_TIMESTAMP)
    assert driver.output == 100
    driver.now += 1_000
    driver.handle(Tick())
    driver.commit_all()
    assert driver.sent() == [("fired", 100)]


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize(
    "do",
    [
        lambda ctx: ctx.produce("out", "x", timestamp=1.5e9),
        lambda ctx: ctx.produce("out", "x", timestamp=1 << 70),
        lambda ctx: ctx.set_timer(True),
        lambda ctx: ctx.set_timer(1, tag=b"bytes"),
        lambda ctx: ctx.set_timer(1, hold=0.5),
        lambda ctx: ctx.set_hold("soon"),
    ],
)
def test_what_cannot_be_read_again_is_refused_before_the_journal(do: Do) -> None:
    """Regression: a float was journaled as a timestamp.

    No takeover could read it, so the interval was lost for good.
    """
    caught: list[Exception] = []

    def hook(ctx: mw.Context[Any]) -> None:
        try:
            do(ctx)
        except MillwheelError as error:
            caught.append(error)

    driver = IntervalDriver(Scripted({"do": hook}, lambda ctx: None))
    driver.deliver(("k", "do", 1))
    driver.commit_all()
    assert len(caught) == 1
    IntervalDriver(Scripted({}, lambda ctx: None), entries=driver.entries)


@pytest.mark.guarantee("G8", section="4.6")
def test_a_timer_that_fails_is_named_as_what_holds() -> None:
    """Regression: the report named a hold of user code, but not its key."""

    def fail(ctx: mw.Context[Any]) -> None:
        raise ValueError("not yet")

    driver = IntervalDriver(Scripted({"set": lambda ctx: ctx.set_timer(Timestamp(100), "t")}, fail))
    driver.deliver(("k", "set", 10))
    driver.watermark(90)
    driver.commit_all()
    driver.watermark(MAX_TIMESTAMP)
    driver.commit_all()
    subject = driver.take(Report)[-1].subject
    assert driver.output == 100
    assert "timer 't' of key 'k' is due and waits for its next attempt after 1 failed: ValueError at test_h" in subject


@pytest.mark.guarantee("G8", section="4.6")
def test_a_timers_own_hold_is_named() -> None:
    hooks: dict[str, Do] = {"set": lambda ctx: ctx.set_timer(Timestamp(100), "t", hold=Timestamp(40))}
    driver = IntervalDriver(Scripted(hooks, lambda ctx: None))
    driver.deliver(("k", "set", 10))
    driver.watermark(90)
    driver.commit_all()
    named = "timer 't' of key 'k' waits until its low watermark is 1970-01-01T00:00:00.000100Z"
    assert (driver.output, driver.take(Report)[-1].subject) == (40, named)
    assert len(driver.core.awaited_groups()) == 1


@pytest.mark.guarantee("G8", section="4.6")
def test_a_timer_of_the_clock_waits_for_no_group() -> None:
    hooks: dict[str, Do] = {
        "set": lambda ctx: ctx.set_timer(Timestamp(ctx.now + 100), "t", domain=mw.TimeDomain.PROCESSING_TIME)
    }
    driver = IntervalDriver(Scripted(hooks, lambda ctx: None))
    driver.deliver(("k", "set", 10))
    driver.watermark(90)
    driver.commit_all()
    assert "timer 't' of key 'k' waits until the clock is " in driver.core.explain_hold()[1]
    assert driver.core.awaited_groups() == []


@pytest.mark.guarantee("G8", section="4.6")
def test_one_of_many_timers_is_named_when_a_user_asks() -> None:
    hooks: dict[str, Do] = {
        "set": lambda ctx: ctx.set_timer(Timestamp(100), "t", hold=Timestamp(40 if ctx.key == "k" else 80))
    }
    driver = IntervalDriver(Scripted(hooks, lambda ctx: None))
    driver.deliver(*((f"other {number}", "set", 10) for number in range(100)), ("k", "set", 10))
    driver.watermark(90)
    driver.commit_all()
    assert driver.take(Report)[-1].subject == "", "a report does not search for long"
    assert driver.core.explain_hold()[1].startswith("timer 't' of key 'k' waits")
    assert driver.core.awaited_groups() != []
