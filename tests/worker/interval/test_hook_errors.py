"""Regressions: an error of a hook fails only this hook (4.1), and a stopped interval does nothing."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.time import Timestamp, seconds
from millwheel.worker.messages import AsyncHook, HookFailed, HookFinished, Tick
from tests.worker.interval.driver import IntervalDriver

LOOP = asyncio.new_event_loop()
LOOP.close()


class Raises(mw.Computation[tuple[str, str], int]):
    """Raises the error from ``error`` for "bad". For "timer" it sets a timer that does so."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        ctx.state += 1
        if what == "timer":
            ctx.set_timer(Timestamp(record.timestamp))
        if what == "bad":
            raise self.error("no")
        ctx.produce("out", what)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        raise self.error("no")


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("what", ["bad", "timer"])
def test_a_hook_that_exits_or_is_cancelled_fails_like_any_other(error: type[BaseException], what: str) -> None:
    """These errors are no subclasses of Exception.

    Regression: they passed all handlers, and the process ended or hung.
    """
    driver = IntervalDriver(Raises(error), on_failure=mw.dead_letter(after=2, initial=seconds(1)))
    driver.deliver(("k", what, 1), ("j", "fine", 2))
    driver.watermark(10)
    for _ in range(4):
        driver.commit_all()
        driver.now += seconds(2)
        driver.handle(Tick())
    driver.commit_all()
    sent = [value if isinstance(value, str) else "dead letter" for value, _ in driver.sent()]
    assert sorted(sent) == sorted(["fine", "dead letter", *(["timer"] if what == "timer" else [])])
    assert driver.state.counts.dead_letters == 1


class WordlessError(Exception):
    """Has no text, or one that cannot be encoded."""

    def __str__(self) -> str:
        return (self.args or (None,))[0]  # type: ignore[no-any-return]


class Wordless(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] != "fine":
            raise WordlessError(*["\ud800"] * (record.value[1] == "surrogate"))

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        raise AssertionError("no timer is set")


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("what", ["nothing", "surrogate"])
@pytest.mark.parametrize("policy", [mw.retry(), mw.dead_letter(after=1), mw.stop(after=1)])
def test_an_error_without_text_is_a_failure_like_any_other(what: str, policy: Any) -> None:
    """Regression: such an error ended the interval and its next owners. Or the work never became a dead letter."""
    driver = IntervalDriver(Wordless(), on_failure=policy)
    driver.deliver(("k", what, 1), ("j", "fine", 2))
    driver.commit_all()
    (failed,) = driver.take(HookFailed)
    reported = "\\ud800" if what == "surrogate" else "(it has no text: its __str__ raised TypeError)"
    assert f"WordlessError: {reported} (attempt 1" in failed.message
    assert failed.message.encode()
    assert driver.core.failing.last is not None
    assert driver.core.failing.last.text == reported
    assert driver.state.counts.dead_letters == (policy.action is mw.dead_letter().action)


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("number", range(2))
def test_an_asynchronous_hooks_exit_without_text_is_a_failure(number: int) -> None:
    class WordlessExit(SystemExit):
        def __str__(self) -> str:
            raise ValueError

        __repr__ = __str__

    class Waits(mw.Computation[tuple[str, str], int]):
        async def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
            raise AssertionError("the test answers for it")

    driver = IntervalDriver(Waits(), on_failure=mw.dead_letter(after=1))
    driver.deliver(("k", "x", 1))
    (hook,) = driver.take(AsyncHook)
    hook.coroutine.close()
    driver.handle(HookFinished(hook.hook, [WordlessExit(), WordlessError()][number]))
    driver.commit_all()
    assert driver.state.counts.dead_letters == 1


async def _wait() -> None:
    raise AssertionError("it was awaited")


class Returns(mw.Computation[tuple[str, str], int]):
    """Returns the value from ``make`` out of one hook. The record has the beginning of the hook's name."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> Any:
        ctx.state += 1
        if record.value[1] == "timer":
            ctx.set_timer(Timestamp(record.timestamp))
        return self.make() if record.value[1] == "record" else None

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> Any:
        return self.make()


@pytest.mark.guarantee("G1", section="4.1")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_wait, "returned coroutine, and a hook returns None: nothing awaits it: make the hook, and each decorator"),
        (lambda: asyncio.Future(loop=LOOP), "returned Future, and a hook returns None: nothing awaits it"),
        (lambda: ["x"], "returned list, and a hook returns None: produce records by ctx.produce(stream, value)"),
    ],
    ids=["coroutine", "future", "value"],
)
@pytest.mark.parametrize("what", ["record", "timer"])
def test_a_hook_that_returns_a_value_fails_and_nothing_is_acked(make: Callable[[], Any], said: str, what: str) -> None:
    """Regression: the record was ACKed without any effect, at the first attempt or when it ran alone."""
    made = []
    driver = IntervalDriver(Returns(lambda: made.append(make()) or made[-1]), on_failure=mw.retry(initial=seconds(1)))  # type: ignore[func-returns-value]
    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always")
        driver.deliver(("k", what, 1), ("j", "fine", 2))
        driver.watermark(10)
        driver.commit_all()
        driver.now += seconds(2)
        driver.handle(Tick())
        assert all(one.cancelled() for one in made if isinstance(one, asyncio.Future))
        made.clear()
        gc.collect()
    assert not reported, "no coroutine is left that was never awaited"
    first, second = driver.take(HookFailed)
    assert f"UsageError: Returns.process_{what} {said}" in first.message
    assert f"UsageError: Returns.process_{what} {said}" in second.message
    assert first.kind.permanent
    assert driver.state.counts.records == (1 if what == "record" else 2), "only what succeeded is ACKed"


def test_a_stopped_interval_sets_no_alarm_for_its_waiting_keys() -> None:
    """Regression: the next attempts were due but never made. The alarm fired at once, again and again."""

    class Picky(mw.Computation[tuple[str, str], Any]):
        def process_record(self, ctx: mw.Context[Any], record: mw.Record[tuple[str, str]]) -> None:
            raise ValueError(record.value[1])

    driver = IntervalDriver(Picky(), on_failure=mw.stop(after=2, initial=seconds(1)))
    driver.deliver(("k", "first", 1))
    driver.commit_all()
    driver.now += seconds(1) // 2
    driver.deliver(("j", "second", 2))
    driver.commit_all()
    driver.now += seconds(1) // 2
    driver.handle(Tick())
    assert driver.core.stopped
    assert len(driver.take(HookFailed)) == 3
    driver.now += seconds(10)
    driver.handle(Tick())
    alarm = driver.core.next_deadline()
    assert alarm is None or alarm > driver.now
