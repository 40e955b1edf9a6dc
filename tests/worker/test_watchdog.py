"""The watchdog: a hook that keeps the event loop is named while it runs, with its key and its line."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import millwheel as mw
from millwheel.sdk.scope import Scope
from millwheel.worker.process.tallies import ComputationName
from millwheel.worker.process.watchdog import RunningHook, Watchdog, running_hook
from tests.patience import patience, until
from tests.worker.interval.driver import IntervalDriver


class Calls(mw.Computation[tuple[str, str], int]):
    """Calls a function from within its hook."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        self.helper(ctx)

    def helper(self, ctx: mw.Context[int]) -> None:
        self.function()


def test_a_hook_on_a_stack_is_found_with_its_key_and_line() -> None:
    found: list[RunningHook | None] = []

    def look() -> None:
        found.append(running_hook(sys._getframe()))  # noqa: SLF001  # Python has no other way to a frame

    driver = IntervalDriver(Calls(look))
    driver.deliver(("some key", "x", 1))
    (hook,) = found
    assert hook is not None
    assert hook.scope is driver.state.scope
    assert (hook.hook, hook.key) == ("process_record", "some key"), "not what the hook calls"
    assert hook.line.startswith("test_watchdog.py:")
    assert hook.line.endswith(" in look")
    assert "helper" in hook.stack
    assert "_run_chunk" not in hook.stack, "the stack begins with the hook"


class CallsForMany(mw.BatchComputation[tuple[str, str], int]):
    """Calls a function from within its hook."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def process_batch(self, ctx: mw.BatchContext[int], batch: mw.RecordBatch[tuple[str, str]]) -> None:
        self.function()


@pytest.mark.parametrize("count", [1, 2])
def test_a_hook_of_many_records_is_found_with_its_first_key(count: int) -> None:
    found: list[RunningHook | None] = []
    driver = IntervalDriver(CallsForMany(lambda: found.append(running_hook(sys._getframe()))))  # noqa: SLF001
    driver.deliver(*[("some key", "x", 1), ("other key", "x", 1)][:count])
    (hook,) = found
    assert hook is not None
    assert (hook.scope, hook.hook, hook.key) == (driver.state.scope, "process_batch", "some key")


def test_a_stack_without_a_hook_names_none() -> None:
    assert running_hook(sys._getframe()) is None  # noqa: SLF001  # Python has no other way to a frame
    assert running_hook(None) is None


async def test_a_loop_that_stands_still_is_reported_while_it_does(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "millwheel.worker")
    asked = threading.Event()

    def place_of(scope: Scope) -> ComputationName | None:
        asked.set()
        return ("words", "count")

    seen: list[Any] = []

    def stands_still() -> None:
        assert asked.wait(patience(10)), "the watchdog never looked"
        while not seen:
            seen.extend(watchdog.running())

    watchdog = Watchdog(0.05, place_of)
    watchdog.start()
    try:
        await asyncio.sleep(0.2)
        assert watchdog.running() == {}
        IntervalDriver(Calls(stands_still)).deliver(("k", "x", 1))
        assert seen == [(("words", "count"), "process_record")]
        await until(lambda: not watchdog.running())
    finally:
        watchdog.stop()
    text = caplog.text
    assert "computation words/count: process_record has kept the event loop for" in text
    assert "for key 'k' at " in text
