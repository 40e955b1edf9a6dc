"""Operators see the keys that a raising hook blocks, and the time that hooks take."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.time import Timestamp, seconds
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.sdk.errors import KeyExtractionError
from millwheel.worker.interval.failing_keys import MAX_DETAILED
from millwheel.worker.interval.hook_meter import BatchTime, HookMeter
from millwheel.worker.interval.hooks.runner import FIRST_CALLS, fitting
from millwheel.worker.messages import AsyncHook, HookFailed, HookFinished, HooksSlow, Report, Tick
from millwheel.worker.process.hook_status import failures_of
from tests.worker.interval.driver import IntervalDriver


class Picky(mw.Computation[tuple[str, str], int]):
    """Raises for keys that are ``broken``. The value "timer" sets a timer, which also raises for them."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1
        if record.value[1] == "timer":
            ctx.set_timer(Timestamp(record.timestamp))
        elif ctx.key in self.broken:
            raise ValueError(f"no {ctx.key}")

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        if ctx.key in self.broken:
            raise KeyError(ctx.key)


def wait(driver: IntervalDriver, time: int) -> None:
    driver.now += time
    driver.handle(Tick())
    driver.commit_all()


def test_a_failing_key_shows_error_place_since_attempts_and_next() -> None:
    driver = IntervalDriver(Picky("k"), on_failure=mw.retry(initial=seconds(2)))
    driver.deliver(("k", "x", 1), ("j", "x", 2))
    driver.commit_all()
    began = driver.now
    wait(driver, seconds(2))
    (failure,) = driver.core.failing.oldest(5)
    assert (failure.key, failure.hook, failure.kind.error, failure.text) == (
        b"k",
        "process_record",
        "ValueError",
        "no k",
    )
    assert failure.work == "record of stream 'in' at 1970-01-01T00:00:00.000001Z"
    assert failure.kind.place.startswith("test_failing_keys.py:")
    assert failure.kind.place.endswith(" in process_record")
    assert (failure.attempts, failure.since, failure.last) == (2, began, driver.now)
    assert failure.next_attempt is not None
    assert driver.state.clocks.wall_at(failure.next_attempt) == driver.now + seconds(4)
    assert (driver.core.failing.blocked, driver.core.failing.total, driver.core.meter.records.failures) == (1, 2, 2)


def test_a_key_that_succeeds_is_no_failing_key_any_more() -> None:
    picky = Picky("k", "t")
    driver = IntervalDriver(picky, on_failure=mw.retry(initial=seconds(1)))
    driver.deliver(("k", "x", 1), ("k", "y", 2), ("t", "timer", 3))
    driver.watermark(100)
    driver.commit_all()
    assert driver.core.failing.blocked == 1, "the watermark has not reached the timer"
    picky.broken.remove("k")
    wait(driver, seconds(1))
    (failure,) = driver.core.failing.oldest(5)
    assert (failure.key, failure.hook, failure.kind.error) == (b"t", "process_timer", "KeyError")
    picky.broken.clear()
    wait(driver, seconds(60))
    assert (driver.core.failing.blocked, driver.core.failing.oldest(5)) == (0, [])
    assert driver.core.failing.last is None, "nothing fails any more"
    assert failures_of(driver.core, driver.now) is None, "so nothing shows it as failing"
    assert driver.core.failing.total == 2


@pytest.mark.parametrize("what", ["x", "timer"])
def test_a_key_that_stops_its_computation_has_no_next_attempt(what: str) -> None:
    driver = IntervalDriver(Picky("k"), on_failure=mw.stop(after=2, initial=seconds(1)))
    driver.deliver(("k", what, 1))
    driver.watermark(10)
    driver.commit_all()
    wait(driver, seconds(1))
    (failure,) = driver.core.failing.oldest(5)
    assert driver.core.stopped
    assert (failure.attempts, failure.next_attempt) == (2, None)
    assert "is blocked after 2 failed" in driver.core.explain_hold()[1]
    assert "is blocked after 2 failed" in driver.take(Report)[-1].subject


def test_work_that_became_dead_letters_blocks_its_key_no_more() -> None:
    driver = IntervalDriver(Picky("k"), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "x", 1), ("k", "y", 2))
    driver.commit_all()
    assert (driver.core.failing.blocked, driver.core.failing.total) == (0, 2)


def test_work_that_was_given_up_is_shown_after_others_succeeded() -> None:
    picky = Picky("k")
    driver = IntervalDriver(picky, on_failure=mw.dead_letter(after=2, initial=seconds(1)))
    driver.deliver(("k", "x", 1))
    driver.commit_all()
    wait(driver, seconds(1))
    picky.broken = {"j"}
    driver.deliver(("j", "x", 2))
    driver.commit_all()
    assert driver.core.failing.last is not None
    assert driver.core.failing.last.key == b"j"
    picky.broken.clear()
    wait(driver, seconds(1))
    shown = failures_of(driver.core, driver.now)
    assert shown is not None
    assert (shown.blocked_keys, shown.last.key, shown.attempts) == (0, b"k", 3)


@pytest.mark.guarantee("G8", section="4.2")
@pytest.mark.parametrize(
    ("mender", "said"),
    [
        (
            "repair",
            "its dead letter has no key at computation `repair`: KeyExtractionError: no key in a dead letter: "
            "fix `repair`'s key function",
        ),
        ("", "its dead letter has no key: KeyExtractionError: no key in a dead letter"),
    ],
    ids=["known", "unknown"],
)
def test_a_dead_letter_without_a_consumers_key_blocks_its_key(mender: str, said: str) -> None:
    """The error left the core: the interval was lost, and its worker gave up all of its intervals, again and again."""
    driver = IntervalDriver(Picky("k"), on_failure=mw.dead_letter(after=1, initial=seconds(1)))
    letters = driver.state.scope.outputs["dead-letters"]
    route = letters.route

    def no_key(letter: Any) -> Any:
        raise KeyExtractionError("no key in\na dead letter", computation=mender)

    letters.route = no_key
    driver.watermark(0)
    driver.deliver(("k", "x", 1), ("fine", "x", 2))
    driver.watermark(10)
    driver.commit_all()
    (failure,) = driver.core.failing.oldest(5)
    assert (failure.kind.error, failure.text) == ("ValueError", "no k"), "the hook's error is not hidden"
    assert failure.letter == said
    (reported,) = driver.take(HookFailed)
    assert reported.endless, "tests of topologies fail by it"
    assert isinstance(reported.error, ValueError)
    assert f"ValueError: no k; {said} (attempt 1; it will be tried again)" in reported.message
    assert driver.core.explain_hold()[1].endswith("; its dead letter has no key")
    assert (driver.state.counts.records, driver.state.counts.dead_letters) == (1, 0)
    letters.route = route
    wait(driver, seconds(1))
    assert (driver.state.counts.records, driver.state.counts.dead_letters) == (2, 1)
    assert driver.core.failing.blocked == 0


class Forward(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.produce("out", record.value[1])


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("policy", [mw.dead_letter, mw.stop])
@pytest.mark.parametrize("computation", ["count", ""])
def test_another_topologys_key_function_gives_up_no_work(policy: Any, computation: str) -> None:
    driver = IntervalDriver(Forward(), on_failure=policy(after=1, initial=seconds(1)))
    out = driver.state.scope.outputs["out"]
    route = out.route

    def no_key(value: Any) -> Any:
        error = KeyExtractionError("no key", computation=computation)
        error.other_topology = "audience"
        raise error

    out.route = no_key
    driver.watermark(0)
    driver.deliver(("k", "x", 1))
    driver.watermark(10)
    driver.commit_all()
    assert not driver.core.stopped
    (failure,) = driver.core.failing.oldest(5)
    who = "`audience/count`" if computation else "a computation"
    assert failure.letter == (
        f"its production has no key at computation {who} of another topology: fix or cancel topology `audience`"
    )
    assert driver.core.explain_hold()[1].endswith("; its production has no key")
    assert (driver.state.counts.records, driver.state.counts.dead_letters) == (0, 0)
    out.route = route
    wait(driver, seconds(1))
    assert (driver.state.counts.records, driver.state.counts.dead_letters) == (1, 0)
    assert driver.core.failing.blocked == 0


@pytest.mark.parametrize(
    ("mistake", "permanent"),
    [
        (lambda ctx: ctx.produce("owt", "x"), True),
        (lambda ctx: ctx.produce("out", 5), True),
        (lambda ctx: ctx.set_timer("soon"), True),
        (lambda ctx: ctx.set_timer(Timestamp(5)), True),
        (lambda ctx: dict[str, int]()["x"], False),
    ],
    ids=["undeclared stream", "value of another type", "no timestamp", "no process_timer", "user's own"],
)
def test_what_the_sdk_refuses_does_not_pass_by_trying_again(mistake: Any, permanent: bool) -> None:
    class Mistaken(mw.Computation[tuple[str, str], int]):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
            mistake(ctx)

    driver = IntervalDriver(Mistaken())
    driver.deliver(("k", "x", 1))
    (failed,) = driver.take(HookFailed)
    assert failed.kind.permanent is permanent
    assert failed.kind.place.startswith("test_failing_keys.py:"), "the user's line, not the SDK's"
    attempt = driver.core.next_deadline()
    assert attempt is not None, "it is tried again all the same: new code fixes it"


@pytest.mark.guarantee("G8", section="4.5")
def test_a_report_follows_the_attempts_of_its_key() -> None:
    """Regression: the text was made when the watermark changed. It then reported one failed attempt for ever."""
    driver = IntervalDriver(Picky("k"), on_failure=mw.retry(initial=seconds(1)))
    driver.watermark(5)
    driver.deliver(("k", "x", 7))
    driver.watermark(50)
    assert "after 1 failed" in driver.take(Report)[-1].subject
    for _ in range(4):
        wait(driver, seconds(1) * 8)
    assert "after 5 failed" in driver.take(Report)[-1].subject
    kind, subject = driver.core.explain_hold()
    assert (kind, "key 'k' waits for its next attempt after 5 failed" in subject) == (HoldKind.HOLD_KIND_RECORD, True)


def test_reports_of_a_failing_key_are_five_seconds_apart() -> None:
    driver = IntervalDriver(Picky("k"), on_failure=mw.retry(initial=mw.milliseconds(1), maximum=mw.milliseconds(1)))
    driver.watermark(5)
    driver.deliver(("k", "x", 7))
    driver.watermark(50)
    driver.take(Report)
    for _ in range(1_000):
        wait(driver, 10_000)
    assert driver.core.failing.total > 900
    assert len(driver.take(Report)) in (1, 2)


def test_of_many_failing_keys_some_keep_text_and_all_are_counted() -> None:
    count = MAX_DETAILED + 50
    keys = [f"k{number}" for number in range(count)]
    picky = Picky(*keys)
    driver = IntervalDriver(picky, on_failure=mw.retry(initial=seconds(1)))
    driver.deliver(*[(key, "x", 1) for key in keys])
    driver.handle(Tick())  # a step ends after a thousand failures, and the rest runs in the next one
    failing = driver.core.failing
    assert (failing.blocked, len(failing.oldest(count))) == (count, MAX_DETAILED)
    assert sum(bool(one.failure and one.failure.text) for one in driver.state.blocked.keys.values()) == MAX_DETAILED
    picky.broken.clear()
    wait(driver, seconds(2))
    assert (failing.blocked, failing.oldest(count)) == (0, [])


STEP = st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "timer"]), st.booleans(), st.integers(0, 9))


@given(st.lists(STEP, max_size=20))
def test_the_count_of_failing_keys_is_exact_in_any_history(steps: list[Any]) -> None:
    picky = Picky()
    driver = IntervalDriver(picky, on_failure=mw.dead_letter(after=3, initial=seconds(1)))
    for number, (key, what, breaks, pause) in enumerate(steps):
        (picky.broken.add if breaks else picky.broken.discard)(key)
        driver.deliver((key, what, number))
        driver.watermark(number)
        wait(driver, seconds(pause))
        blocked = [one for one in driver.state.blocked.keys.values() if one.failure is not None]
        assert driver.core.failing.blocked == len(blocked) == len(driver.core.failing.oldest(100))
        assert all(one.attempts == one.failure.attempts for one in blocked if one.failure is not None)


class Clock:
    """Returns the time that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(mw.Computation[tuple[str, str], int]):
    """Takes two seconds for "slow", and a millisecond for other values. Its timers take three seconds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        self.clock.now += 2.0 if record.value[1] == "slow" else 0.001
        if record.value[1] == "timer":
            ctx.set_timer(Timestamp(record.timestamp))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        self.clock.now += 3.0


def test_calls_and_seconds_of_each_hook_add_up() -> None:
    clock = Clock()
    meter = HookMeter(clock)
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(*[(f"k{number}", "timer", 1) for number in range(10)])
    driver.watermark(5)
    driver.commit_all()
    assert (meter.records.calls, meter.timers.calls) == (10, 10)
    assert (round(meter.records.seconds, 6), round(meter.timers.seconds, 6)) == (0.01, 30.0)
    assert driver.take(HooksSlow) == [], "no limit was set"


def test_a_hook_that_keeps_the_event_loop_is_named_with_its_time() -> None:
    clock = Clock()
    meter = HookMeter(clock, limit=1.0)
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(("k", "slow", 1))
    (slow,) = driver.take(HooksSlow)
    assert (slow.batch.hook, slow.batch.calls, slow.batch.seconds, slow.batch.key) == ("process_record", 1, 2.0, b"k")
    driver.commit_all()
    driver.deliver(*[(f"k{number}", "slow" if number == 3 else "timer", 5) for number in range(10)])
    (slow,) = driver.take(HooksSlow)
    assert (slow.batch.calls, slow.batch.key) == (10, None)
    driver.commit_all()
    driver.watermark(9)
    (slow,) = driver.take(HooksSlow)
    assert (slow.batch.hook, slow.batch.calls, slow.batch.seconds) == ("process_timer", 9, 27.0)
    assert (meter.records.blocked, meter.timers.blocked) == (2, 1)


def test_a_batch_ends_when_its_turn_is_over() -> None:
    """The rest follows with the next event. So hooks of one interval leave the event loop to others (G8)."""
    clock = Clock()
    meter = HookMeter(clock, batch_time=BatchTime(0.02))
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(*[(f"k{number}", "x", 1) for number in range(10)])
    assert meter.records.calls == 10, "no call has been measured yet"
    driver.commit_all()
    driver.deliver(*[(f"k{number}", "x", 1) for number in range(300)])
    ran = [meter.records.calls]
    while meter.records.calls < 310:
        driver.commit()
        ran.append(meter.records.calls)
    sizes = [after - before for before, after in pairwise(ran)]
    assert 10 <= min(sizes) <= max(sizes) <= 20


def test_the_first_batch_of_an_owner_is_small() -> None:
    """A takeover brings a long queue at once. If its calls are slow, a full batch outlasts the lease (G8)."""
    clock = Clock()
    meter = HookMeter(clock, batch_time=BatchTime(0.02))
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(*[(f"k{number}", "x", 1) for number in range(1_000)])
    assert FIRST_CALLS < meter.records.calls <= FIRST_CALLS + 20, "the second batch is as long as its calls allow"


@pytest.mark.guarantee("G8")
def test_the_first_timers_behind_quick_records_are_few() -> None:
    """Regression: the timers of a window fired in a batch whose length was that of its quick records."""
    clock = Clock()
    meter = HookMeter(clock, batch_time=BatchTime(0.5))
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(*[(f"k{number}", "timer", 1) for number in range(500)])
    driver.commit_all()
    driver.watermark(9)
    fired = [0, meter.timers.calls]
    while meter.timers.calls < 500:
        driver.commit()
        fired.append(meter.timers.calls)
    most = max(after - before for before, after in pairwise(fired))
    assert most <= 2, "a commit begins, and the next batch has one call"
    driver.commit_all()
    driver.deliver(*[(f"k{number}", "x", 10) for number in range(500)])
    assert meter.records.calls >= 990, "slow timers leave the batches of quick records as they are"


@pytest.mark.guarantee("G8")
def test_the_first_call_of_an_owner_is_measured_alone() -> None:
    """Regression: ten calls that each wait in vain for another service outlasted the lease of each owner.

    A first call may also be slow because it loads something. The batches after it grow soon.
    """
    clock = Clock()
    meter = HookMeter(clock, batch_time=BatchTime(0.1))
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(*[(f"k{number}", "slow", 1) for number in range(20)])
    assert (meter.records.calls, clock.now) == (2, 4.0), (
        "the first is committed alone, and the second is the next batch"
    )
    loads = HookMeter(clock, batch_time=BatchTime(0.1))
    driver = IntervalDriver(Slow(clock), meter=loads)
    driver.deliver(*[(f"k{number}", "x" if number else "slow", 1) for number in range(1_000)])
    commits = 0
    while driver.state.intake.records:
        driver.commit()
        commits += 1
    assert commits < 150, "the pace is the mean of all calls so far"


@pytest.mark.guarantee("G8")
def test_records_that_call_nothing_need_no_small_batch() -> None:
    """Regression: late records that are dropped, and asynchronous hooks, have no duration. An owner of nothing else
    committed ten at a time for ever."""
    clock = Clock()
    late = IntervalDriver(Slow(clock), meter=HookMeter(clock, batch_time=BatchTime(0.1)), late=mw.Late.DROP)
    late.watermark(100)
    late.deliver(*[(f"k{number}", "x", 1) for number in range(500)])
    late.commit()
    assert late.state.intake.records == 0
    waiting = IntervalDriver(Waiting(), meter=HookMeter(clock, batch_time=BatchTime(0.1)))
    waiting.deliver(*[(f"k{number}", "x", 1) for number in range(200)])
    hooks = waiting.take(AsyncHook)
    assert len(hooks) == 200
    for hook in hooks:
        hook.coroutine.close()
        waiting.handle(HookFinished(hook.hook, None))
    waiting.commit()
    waiting.commit()
    assert waiting.state.intake.records == 0


def test_one_slow_call_shortens_the_next_batches_little() -> None:
    """A pause of the process, say, happens during one call. It is a hundredth of the pace."""
    clock = Clock()
    meter = HookMeter(clock, batch_time=BatchTime(1.0))
    driver = IntervalDriver(Slow(clock), meter=meter)
    driver.deliver(*[(f"k{number}", "x", 1) for number in range(500)])
    driver.commit_all()
    assert fitting(meter.batch_time, meter.records, 8_192) == pytest.approx(1_000, abs=2)
    driver.deliver(("k", "slow", 1))
    driver.commit_all()
    assert fitting(meter.batch_time, meter.records, 8_192) == pytest.approx(1 / 0.021, abs=2)
    meter.records.pace = 100.0
    assert fitting(meter.batch_time, meter.records, 8_192) == 1, "a batch has at least one call"


def test_records_that_wait_or_are_dropped_are_no_calls() -> None:
    clock = Clock()
    driver = IntervalDriver(Slow(clock), meter=HookMeter(clock), late=mw.Late.DROP)
    driver.watermark(100)
    driver.deliver(("k", "x", 100), ("k", "late", 5))
    driver.commit_all()
    assert driver.core.meter.records.calls == 1


class Waiting(mw.Computation[tuple[str, str], int]):
    """Its hooks wait."""

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


def test_an_asynchronous_hook_counts_once_with_what_it_waits_for() -> None:
    clock = Clock()
    driver = IntervalDriver(Waiting(), meter=HookMeter(clock, limit=1.0))
    driver.deliver(("k", "x", 1), ("j", "x", 2))
    for hook in driver.take(AsyncHook):
        hook.coroutine.close()
        clock.now += 5.0
        driver.handle(HookFinished(hook.hook, None))
    assert (driver.core.meter.records.calls, driver.core.meter.records.seconds) == (2, 15.0)
    assert driver.take(HooksSlow) == [], "the event loop was free meanwhile"


def test_hooks_that_do_not_end_are_shown_the_oldest_first() -> None:
    driver = IntervalDriver(Waiting())
    driver.deliver(("a", "x", 1))
    began = driver.now
    driver.now += 1_000_000
    driver.deliver(("b", "x", 2), ("c", "x", 3))
    hooks = driver.take(AsyncHook)
    for hook in hooks:
        hook.coroutine.close()
    first, second, third = (hook.hook for hook in hooks)
    assert [(one.key, one.since) for one in driver.core.awaited_hooks(began, 9)] == [(b"a", began)]
    assert [one.key for one in driver.core.awaited_hooks(driver.now, 2)] == [b"a", b"b"]
    (shown,) = driver.core.awaited_hooks(began, 1)
    assert (shown.hook, shown.work) == ("process_record", "record of stream 'in' at 1970-01-01T00:00:00.000001Z")
    driver.handle(HookFinished(first, None))
    driver.handle(HookFinished(third, None))
    assert [one.key for one in driver.core.awaited_hooks(driver.now, 9)] == [b"b"]
    driver.handle(HookFinished(second, None))
    assert driver.core.awaited_hooks(driver.now, 9) == []
