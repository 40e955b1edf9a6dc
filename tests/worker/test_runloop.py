"""The run queue keeps the order, leaves others their time, and survives a call that raises."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.worker.process.run_queue import IDLE_TURN_SECONDS, IDLE_TURNS, RUN_SECONDS, LoopPause, RunQueue
from tests.patience import until


async def test_calls_run_in_posting_order_and_never_inside_each_other() -> None:
    queue = RunQueue(asyncio.get_running_loop()).share("t")
    seen: list[int] = []

    def call(number: int) -> None:
        if number < 3:
            queue.post(call, number + 10)
        seen.append(number)

    for number in range(4):
        queue.post(call, number)
    assert seen == [], "posting returns before anything runs"
    await until(lambda: len(seen) == 7)
    assert seen == [0, 1, 2, 3, 10, 11, 12]


async def test_a_raising_call_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    queue = RunQueue(asyncio.get_running_loop()).share("t")
    seen: list[int] = []

    def call(number: int) -> None:
        if number == 1:
            raise RuntimeError("odd one out")
        seen.append(number)

    for number in range(3):
        queue.post(call, number)
    await until(lambda: len(seen) == 2)
    queue.post(call, 7)
    await until(lambda: len(seen) == 3)
    assert seen == [0, 2, 7]
    assert "odd one out" in caplog.text


async def test_a_flood_leaves_timers_their_turn() -> None:
    queue = RunQueue(asyncio.get_running_loop()).share("t")
    turns: list[int] = []
    left = 200

    def work(number: int) -> None:
        nonlocal left
        left -= 1
        time.sleep(0.001)

    for number in range(200):
        queue.post(work, number)
    while left:
        turns.append(left)
        await asyncio.sleep(0)
    assert len(turns) > 10


async def test_an_end_runs_after_all_calls_and_before_the_next_turn() -> None:
    """What it posts runs before the next end. So intervals that wait for one another are committed in one turn."""
    loop, share = asyncio.get_running_loop(), RunQueue(asyncio.get_running_loop()).share("t")
    seen: list[object] = []

    def call(number: int) -> None:
        seen.append(number)
        if number < 3:
            share.at_end(partial(end, number + 2))

    def end(number: int) -> None:
        seen.append("end")
        share.post(call, number)

    share.post(call, 1)
    share.post(call, 2)
    loop.call_soon(seen.append, "next")
    await until(lambda: len(seen) == 7)
    assert seen == [1, 2, "end", 3, "end", 4, "next"]


@pytest.mark.guarantee("G8")
async def test_an_end_waits_for_no_unending_run() -> None:
    share = RunQueue(asyncio.get_running_loop()).share("t")
    left, ended = 60, list[int]()

    def work(_: None) -> None:
        nonlocal left
        left -= 1
        time.sleep(0.001)
        share.at_end(lambda: ended.append(left))
        if left:
            share.post(work, None)

    share.post(work, None)
    await until(lambda: len(ended) == 60)
    assert ended[0] > 30


@pytest.mark.guarantee("G8")
async def test_a_cancellation_raised_by_a_call_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: the queue stayed scheduled without running. The process handled no event any more."""
    queue = RunQueue(asyncio.get_running_loop()).share("t")
    seen: list[int] = []

    def call(number: int) -> None:
        if number == 1:
            raise asyncio.CancelledError
        seen.append(number)

    for number in range(3):
        queue.post(call, number)
    await until(lambda: len(seen) == 2)
    queue.post(call, 7)
    await until(lambda: len(seen) == 3)
    assert seen == [0, 2, 7]
    assert "run queue" in caplog.text


class _Clock:
    """A clock that moves when a call works."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr("millwheel.worker.process.run_queue.time", clock)
    return clock


class _Topology:
    """Work for one share: each call takes a time and posts the next one, until the clock has reached an end."""

    def __init__(
        self, queue: RunQueue, clock: _Clock, name: str, weight: float, seconds: float, calls: int, lasts: float = 1.0
    ) -> None:
        self.share = queue.share(name, weight)
        self.used = 0.0
        self._clock, self._seconds = clock, seconds
        self._end = clock.now + lasts
        for _ in range(calls):
            self.share.post(self._work, None)

    def _work(self, _: None) -> None:
        self._clock.now += self._seconds
        self.used += self._seconds
        if self._clock.now < self._end:
            self._next()

    def _next(self) -> None:
        self.share.post(self._work, None)


class _Appending(_Topology):
    """Each call is posted when the one before has an answer of the store."""

    def _next(self) -> None:
        asyncio.get_running_loop().call_soon(super()._next)


async def _until(clock: _Clock, end: float) -> None:
    for _ in range(100_000):
        if clock.now >= end:
            return
        await asyncio.sleep(0)
    pytest.fail("the clock stands still")


async def test_many_intervals_take_no_time_from_one(clock: _Clock) -> None:
    queue = RunQueue(asyncio.get_running_loop())
    wide = _Topology(queue, clock, "wide", 1.0, 0.000_2, calls=50)
    slow = _Topology(queue, clock, "slow", 1.0, 0.003, calls=1)
    await _until(clock, 101.0)
    assert abs(wide.used - slow.used) < 0.01


async def test_shares_are_as_the_weights(clock: _Clock) -> None:
    queue = RunQueue(asyncio.get_running_loop())
    used = {weight: _Topology(queue, clock, str(weight), weight, 0.000_5, calls=3) for weight in (1.0, 2.0, 5.0)}
    await _until(clock, 101.0)
    for weight, one in used.items():
        assert abs(one.used - weight / 8) < 0.01


async def test_idle_time_is_not_saved_up(clock: _Clock) -> None:
    """A share that comes back gets its part from now on. It does not make up for what it did not use."""
    queue = RunQueue(asyncio.get_running_loop())
    early = queue.share("idle")
    early.post(lambda _: None, None)
    busy = _Topology(queue, clock, "busy", 1.0, 0.000_5, calls=1)
    await _until(clock, 100.5)
    late = _Topology(queue, clock, "idle", 1.0, 0.000_5, calls=1)
    before, end = busy.used, clock.now + 0.2
    await _until(clock, end)
    assert late.share is early
    assert abs((busy.used - before) - late.used) < 0.01


async def test_a_share_takes_a_new_weight(clock: _Clock) -> None:
    queue = RunQueue(asyncio.get_running_loop())
    first, second = (_Topology(queue, clock, name, 1.0, 0.000_5, calls=1) for name in "ab")
    assert queue.share("b", 3.0) is second.share
    await _until(clock, 101.0)
    assert abs(second.used - 3 * first.used) < 0.02


async def test_a_larger_weight_counts_at_once(clock: _Clock) -> None:
    """A long call with a small weight left the topology without any time for 100 s, also with its new weight."""
    queue = RunQueue(asyncio.get_running_loop())
    _Topology(queue, clock, "other", 1.0, 0.000_5, calls=1)
    share = queue.share("raised", 0.01)
    share.post(lambda _: setattr(clock, "now", clock.now + 1.0), None)
    await _until(clock, 101.0)
    queue.share("raised", 1.0)
    _Topology(queue, clock, "other", 1.0, 0.000_5, calls=1, lasts=3.0)
    raised = _Topology(queue, clock, "raised", 1.0, 0.000_5, calls=1, lasts=3.0)
    await _until(clock, clock.now + 3.0)
    assert raised.used == pytest.approx(1.0, abs=0.05), "it pays for its second, and then gets half"


async def test_a_light_topology_waits_for_one_slice(clock: _Clock) -> None:
    """However much work another one has, its own call comes after the slice that runs."""
    queue = RunQueue(asyncio.get_running_loop())
    _Topology(queue, clock, "flood", 1.0, 0.000_5, calls=1_000)
    light = queue.share("light")
    waited: list[float] = []
    for number in range(50):
        light.post(lambda posted: waited.append(clock.now - posted), clock.now)
        for _ in range(IDLE_TURNS + 5):
            await asyncio.sleep(0)
        assert len(waited) == number + 1
    assert max(waited) < 0.006  # the turn that runs, and one slice


@pytest.mark.parametrize("calls", [1, 4])
async def test_what_takes_many_turns_waits_for_one_call(clock: _Clock, calls: int) -> None:
    """Regression: each turn of a message or an answer waited for a batch of another topology, more than four in all.

    A connection with a message for each 20 ms was read more slowly than that, and its messages waited for seconds.
    """
    queue = RunQueue(asyncio.get_running_loop())
    _Topology(queue, clock, "flood", 1.0, 0.01, calls)
    for _ in range(20):
        began = clock.now
        for _ in range(10):
            await asyncio.sleep(0)
        assert clock.now - began < 0.011


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(("kind", "seconds"), [(_Topology, 0.002), (_Appending, 0.0011)])
async def test_a_busy_loop_stops_no_topology(clock: _Clock, kind: type[_Topology], seconds: float) -> None:
    """The queue waits for other work of the event loop, but for no longer than it has run itself.

    Regression: after a run of one short call it waited for five times as long.
    """
    queue = RunQueue(asyncio.get_running_loop())
    busy = kind(queue, clock, "busy", 1.0, seconds, calls=1)
    while clock.now < 101.0:
        await asyncio.sleep(0)
        clock.now += 0.000_1
    assert busy.used == pytest.approx(0.5, abs=0.1)


async def test_after_quick_calls_the_next_runs_at_once(clock: _Clock) -> None:
    queue = RunQueue(asyncio.get_running_loop()).share("t")
    for number in range(10):
        ran: list[int] = []
        queue.post(ran.append, number)
        await asyncio.sleep(0)
        assert ran == [number]


@given(st.lists(st.floats(0.000_001, 0.003), max_size=200), st.floats(0.001, 0.1))
def test_a_pause_ends_at_an_idle_loop_or_after_a_run(turns: list[float], ran: float) -> None:
    pause, now, idle = LoopPause(), 100.0, 0
    pause.begin(now, ran)
    for seconds in turns:
        now += seconds
        idle = idle + 1 if seconds < IDLE_TURN_SECONDS else 0
        assert pause.is_over(now) == (idle >= IDLE_TURNS or now >= 100.0 + min(ran, RUN_SECONDS))
        if pause.is_over(now):
            return
