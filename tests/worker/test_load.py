"""The load that a worker reports: rates over the last seconds, by interval (7.1)."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.worker.interval.hook_meter import HookMeter
from millwheel.worker.messages import AsyncHook
from millwheel.worker.process.load import LoadMeter, Metered, memory_limit
from tests.worker.interval.driver import IntervalDriver


class Counts(mw.Computation[tuple[str, str], int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        ctx.state += 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_are_of_the_last_seconds() -> None:
    clock, busy, driver = Clock(), [0.0], IntervalDriver(Counts())
    meter = LoadMeter(lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, busy[0])], clock)
    assert meter.load().intervals[0].records_per_second == 0
    for _ in range(40):
        clock.now += 1
        busy[0] += 0.25
        driver.deliver(*[(f"k{number}", "x", 5) for number in range(30)])
        driver.commit_all()
        load = meter.load().intervals[0]
    assert abs(load.records_per_second - 30) < 1e-6
    assert abs(load.busy - 0.25) < 1e-6
    assert (load.journal, load.sequencer, load.keys, load.independent) == ("test.1.j1", 7, 30, True)
    assert {one.key for one in load.sample} <= {b"k%d" % number for number in range(30)}
    for _ in range(30):
        clock.now += 1
        load = meter.load().intervals[0]
    assert load.records_per_second == 0, "it has been idle for longer than rates look back"
    assert load.busy == 0


def test_a_rate_after_a_rest_is_that_of_the_last_seconds() -> None:
    clock, busy, driver = Clock(), [0.0], IntervalDriver(Counts())
    meter = LoadMeter(lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, busy[0])], clock)
    for _ in range(600):
        clock.now += 2
        before = meter.load().intervals[0]
    assert (before.records_per_second, before.busy, before.keys) == (0, 0, 0)
    clock.now += 2
    busy[0] += 5.0
    driver.deliver(*[(f"k{number}", "x", 5) for number in range(30)])
    driver.commit_all()
    load = meter.load().intervals[0]
    assert (load.records_per_second, load.busy, load.keys) == (3.0, 0.5, 30)
    sampled = [one.key for one in load.sample]
    assert sampled
    for _ in range(10):
        clock.now += 2
        load = meter.load().intervals[0]
    assert (load.records_per_second, load.busy, load.keys) == (0, 0, 30)
    assert [one.key for one in load.sample] == sampled, "its keys are listed once"


def test_a_lag_that_grows_by_time_alone_is_seen() -> None:
    clock, driver = Clock(), IntervalDriver(Counts())
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, 1.0)], clock, wall=lambda: driver.now
    )
    driver.deliver(("a", "x", 1))
    for lag in range(1, 60):
        clock.now += 1
        driver.now += 1_000_000
        assert meter.load().intervals[0].system_lag_seconds == lag


def test_a_lag_is_seen_after_a_clock_was_set_back() -> None:
    clock, driver, wall = Clock(), IntervalDriver(Counts()), [0]
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, 1.0)], clock, wall=lambda: wall[0]
    )
    driver.deliver(("a", "x", 1))
    for ahead, lag in ((-100, 0), (60, 60)):
        clock.now += 1
        wall[0] = driver.now + ahead * 1_000_000
        assert meter.load().intervals[0].system_lag_seconds == lag


def test_arrivals_are_those_at_the_senders() -> None:
    """Regression: bursts, and what was repeated after a takeover, counted as if they had come at that moment."""
    clock, driver = Clock(), IntervalDriver(Counts())
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, clock.now)],
        clock,
        wall=lambda: driver.now,
    )

    def rate_after(seconds: int) -> float:
        clock.now += seconds
        driver.now += seconds * 1_000_000
        return meter.load().intervals[0].arriving_per_second

    assert rate_after(1) == 0
    driver.deliver(*[("a", "x", 1)] * 300, waited=180_000_000, span=60_000_000)
    assert rate_after(1) == 0, "it is the first delivery"
    driver.deliver(*[("a", "x", 1)] * 600, waited=121_000_000, span=120_000_000)
    assert round(rate_after(1), 1) == 5.0, "600 came in two minutes"
    for _ in range(4):
        rate_after(10)
        driver.deliver(*[("a", "x", 1)] * 100, waited=20_000_000, span=20_000_000)
        rate_after(10)
    assert round(rate_after(0), 1) == 5.0, "100 in 20 seconds, although they are delivered at once"
    for _ in range(7):
        rate_after(10)
    assert rate_after(0) == 0, "nothing has come for a minute"


class Arrivals:
    """An interval that never rests, its load reports, and records that come to it."""

    def __init__(self) -> None:
        self.clock, self.driver = Clock(), IntervalDriver(Counts())
        self.meter = LoadMeter(
            lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, self.driver.core, self.clock.now)],
            self.clock,
            wall=lambda: self.driver.now,
        )

    def after(self, seconds: float) -> float | None:
        """The rate of arrivals so many seconds later. None: it is not reported."""
        self.clock.now += seconds
        self.driver.now += int(seconds * 1_000_000)
        load = self.meter.load().intervals[0]
        return round(load.arriving_per_second, 1) if load.HasField("arriving_per_second") else None


def test_arrivals_after_an_idle_time_are_of_the_last_minute() -> None:
    """Regression: what came in ten seconds counted as if it had come in the hour before."""
    one = Arrivals()
    one.driver.deliver(("a", "x", 1))
    one.driver.commit_all()
    for _ in range(360):
        one.after(10)
    one.driver.deliver(*[("a", "x", 1)] * 6_000, waited=10_000_000, span=10_000_000)
    assert one.after(0) == 100.0, "6,000 in the last minute"


def test_arrivals_at_one_moment_are_over_the_time_between_looks() -> None:
    """Regression: a look amid a burst made the rest of it the rate of the next minute."""
    one = Arrivals()
    one.driver.deliver(*[("a", "x", 1)] * 500, waited=40)
    one.after(0)
    one.driver.deliver(*[("a", "x", 1)] * 500)
    assert one.after(10) == 50.0, "and not 500 in 40 us"


def test_arrivals_are_not_known_at_the_first_look() -> None:
    one = Arrivals()
    assert one.after(1) is None, "nothing has come"
    one.driver.deliver(("a", "x", 1))
    assert one.after(1) is None
    assert one.after(1) == 0.0
    assert one.after(61) is None, "there was no look for a minute"


def test_an_interval_at_rest_keeps_no_looks() -> None:
    """Its memory would grow with the number of idle intervals."""
    clock, busy, driver = Clock(), [1.0], IntervalDriver(Counts())
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, busy[0])], clock, wall=lambda: driver.now
    )
    driver.deliver(("a", "x", 1))
    driver.commit_all()
    for _ in range(8):
        clock.now += 10
        load = meter.load().intervals[0]
    assert load.HasField("arriving_per_second")
    driver.deliver(("a", "x", 1))
    clock.now += 10
    busy[0] += 1.0
    assert not meter.load().intervals[0].HasField("arriving_per_second"), "it begins again"


def test_the_busiest_intervals_alone_have_sampled_keys() -> None:
    clock, driver, busy = Clock(), IntervalDriver(Counts()), dict.fromkeys(range(40), 1.0)
    driver.deliver(("a", "x", 1))
    driver.commit_all()
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), f"test.1.j{one}", 7, driver.core, at) for one, at in busy.items()],
        clock,
    )
    meter.load()
    for worked in ((), (), range(32, 40), range(8)):
        clock.now += 20
        busy |= {one: busy[one] + 0.5 for one in worked}
        sampled = {number for number, one in enumerate(meter.load().intervals) if one.sample}
        assert len(sampled) == 32
        assert sampled.issuperset(worked)


def test_a_hook_that_becomes_long_is_seen() -> None:
    class Waits(mw.Computation[tuple[str, str], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[Any]) -> None:
            ctx.set_timer(mw.Timestamp(50), "t")

        async def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None: ...

    clock, driver = Clock(), IntervalDriver(Waits())
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, 1.0)], clock, wall=lambda: driver.now
    )
    driver.deliver(("a", "x", 1))
    driver.commit_all()
    driver.watermark(100)
    (hook,) = driver.take(AsyncHook)
    hook.coroutine.close()
    for _ in range(8):
        clock.now += 1
        driver.now += 1_000_000
        assert not meter.load().intervals[0].HasField("failures")
    clock.now += 10
    driver.now += 10_000_000
    (awaited,) = meter.load().intervals[0].failures.awaited
    assert (awaited.key, awaited.hook) == (b"a", "process_timer")


def test_slow_calls_of_hooks_are_a_rate_of_their_own() -> None:
    clock = Clock()

    class Takes(Counts):
        def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
            clock.now += 6.0 if ctx.key == "slow" else 0.01

    driver, work = IntervalDriver(Takes(), meter=HookMeter(clock, limit=1.0)), count()
    meter = LoadMeter(lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, next(work))], clock)
    meter.load()
    driver.deliver(*[("quick", "x", 5)] * 200)
    assert meter.load().intervals[0].slow == 0, "of many quick calls none is slow, though all of them take 2 s"
    driver.deliver(("slow", "x", 5))
    load = meter.load().intervals[0]
    assert abs(load.slow - 6.0 / 8.0) < 1e-6
    assert driver.core.meter.records.blocked == 2


def test_the_system_lag_is_in_the_load() -> None:
    driver = IntervalDriver(Counts())
    meter = LoadMeter(
        lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, 0.0)], wall=lambda: driver.now
    )
    driver.deliver(("a", "x", 1))
    driver.now += 4_000_000
    assert meter.load().intervals[0].system_lag_seconds == 4.0, "the record waits for its commit"
    driver.commit_all()
    assert meter.load().intervals[0].system_lag_seconds == 0.0


def test_a_rate_begins_with_its_interval_and_ends_with_it() -> None:
    clock, driver = Clock(), IntervalDriver(Counts())
    shown: list[Metered] = []
    meter = LoadMeter(lambda: shown, clock)
    assert not meter.load().intervals
    driver.deliver(*[("k", "x", 5)] * 9)
    driver.commit_all()
    clock.now += 5
    shown.append(Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, 99.0))
    load = meter.load().intervals[0]
    assert load.records_per_second == 9 / 5, "it has counted them since the last look, as its computation's traffic"
    assert load.busy == 0, "how much of its work was that of its opening is not known"
    shown.clear()
    assert not meter.load().intervals


def test_records_of_earlier_owners_are_no_rate() -> None:
    clock, driver, work = Clock(), IntervalDriver(Counts()), count()
    meter = LoadMeter(lambda: [Metered(IncarnationId("test.1"), "test.1.j1", 7, driver.core, next(work))], clock)
    meter.load()
    driver.core.state.journal.restore_counts([1_000_000, 0, 0, 0, 0])
    clock.now += 5
    assert meter.load().intervals[0].records_per_second == 0, "it has just taken over"
    driver.deliver(*[("k", "x", 5)] * 10)
    driver.commit_all()
    assert meter.load().intervals[0].records_per_second == 2


def test_the_process_is_measured_too() -> None:
    load = LoadMeter(list).load()
    assert load.resident_bytes > 1 << 20
    assert load.memory_limit_bytes >= load.resident_bytes
    assert load.cpu >= 0


def test_a_control_group_limits_what_the_machine_has(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert memory_limit(limit) == 1 << 20
    limit.write_text("max\n")
    assert memory_limit(limit) == memory_limit(tmp_path / "absent") > 1 << 20
