"""Regressions: whatever a hook raises is its own failure (4.1), and an interval that stands still is still."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import millwheel as mw
from millwheel.core.time import Timestamp, seconds
from millwheel.worker.messages import HookFailed, Tick
from tests.interval.solo import Solo


class Raises(mw.Computation[tuple[str, str], int]):
    """Raises what its ``error`` makes, for "bad"; sets a timer that does so for "timer"."""

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


@pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize("what", ["bad", "timer"])
def test_g2_a_hook_that_exits_or_is_cancelled_fails_like_any_other(error: type[BaseException], what: str) -> None:
    """These are no Exceptions, and went through everything: the process ended, or stood still."""
    solo = Solo(Raises(error), on_failure=mw.dead_letter(after=2, initial=seconds(1)))
    solo.deliver(("k", what, 1), ("j", "fine", 2))
    solo.watermark(10)
    for _ in range(4):
        solo.commit_all()
        solo.now += seconds(2)
        solo.handle(Tick())
    solo.commit_all()
    sent = [value if isinstance(value, str) else "dead letter" for value, _ in solo.sent()]
    assert sorted(sent) == sorted(["fine", "dead letter", *(["timer"] if what == "timer" else [])])
    assert solo.state.counts.dead_letters == 1


def test_an_interval_that_stands_still_does_not_ring_for_the_keys_that_wait_there() -> None:
    """Their next attempts were due and never made: the alarm rang at once, and again, without end."""

    class Picky(mw.Computation[tuple[str, str], Any]):
        def process_record(self, ctx: mw.Context[Any], record: mw.Record[tuple[str, str]]) -> None:
            raise ValueError(record.value[1])

    solo = Solo(Picky(), on_failure=mw.stop(after=2, initial=seconds(1)))
    solo.deliver(("k", "first", 1))
    solo.commit_all()
    solo.now += seconds(1) // 2
    solo.deliver(("j", "second", 2))
    solo.commit_all()
    solo.now += seconds(1) // 2
    solo.handle(Tick())
    assert solo.core.stopped
    assert len(solo.take(HookFailed)) == 3
    solo.now += seconds(10)
    solo.handle(Tick())
    alarm = solo.core.next_alarm()
    assert alarm is None or alarm > solo.now
