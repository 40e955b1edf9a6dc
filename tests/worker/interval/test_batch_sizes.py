"""How many records calls for many records get, and how long their steps take (sections 4.1, 4.2; G8, G13)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast

import pyarrow as pa
import pytest

import millwheel as mw
from millwheel.rpc.columns import RecordColumns
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.hook_meter import BatchTime, HookMeter
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.messages import AppendEntry, Delivery
from tests.worker.interval.driver import IntervalDriver

SECOND = 1_000_000


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize(
    ("fixed", "of_each", "first", "least", "most"),
    [(0.015, 0.000_001, 0.0, 256, 256), (0.0, 0.015, 0.0, 32, 32), (0.0, 0.1, 0.0, 8, 8), (0.5, 0.0, 2.0, 32, 32)],
    ids=["a costly call", "costly records", "records beyond all bounds", "a call beyond all bounds"],
)
def test_batches_grow_where_a_call_costs_more_than_its_records(
    fixed: float, of_each: float, first: float, least: int, most: int
) -> None:
    """The first call has two records, and each one after a quick call has twice as many."""
    clock = Clock()

    class Costly(mw.BatchComputation[tuple[str, str]]):
        max_records = 256

        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            clock.now += fixed + of_each * len(batch) + (first if not sizes else 0.0)
            sizes.append(len(batch))

    sizes: list[int] = []
    driver = IntervalDriver(Costly(), meter=HookMeter(clock, batch_time=BatchTime(0.01)))
    for _ in range(40):
        driver.deliver(*((f"key {number}", "x", 1) for number in range(256)))
        driver.commit_all()
    assert sizes[0] == 2
    assert least <= min(sizes[-4:]) <= max(sizes[-20:]) <= most


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("tables", [True, False])
def test_a_sink_gets_tables_by_calls_that_grow(monkeypatch: pytest.MonkeyPatch, tables: bool) -> None:
    """What a row costs is measured for columns, too: steps before a sink may call functions."""
    deliver, sizes, clock = IntervalReceiver.deliver, list[int](), Clock()

    class Collects(mw.BatchComputation[tuple[str, str]]):
        _takes_columns = True

        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            clock.now += 0.05 * len(batch)
            sizes.append(len(batch))

    def as_table(receiver: IntervalReceiver, delivery: Delivery) -> Any:
        columns = {"key": [key.decode() for key in delivery.keys]}
        records = RecordColumns(pa.record_batch(columns), array("q", delivery.timestamps), b"0")
        delivery.keys, delivery.values, delivery.timestamps = records.keys(), records, records.timestamps
        return deliver(receiver, delivery)

    if tables:
        monkeypatch.setattr(IntervalReceiver, "deliver", as_table)
    driver = IntervalDriver(Collects(), meter=HookMeter(clock, batch_time=BatchTime(0.01)))
    driver.deliver(*((f"key {number}", "x", 1) for number in range(256)))
    for _ in range(40):
        driver.commit_all()
        driver.pass_time(1_000)
    assert sizes[:3] == [2, 4, 8]
    assert max(sizes) < 32
    assert sum(sizes) == 256


class Service:
    """A service that is down until it is mended."""

    now = True


class TimedDriver(IntervalDriver):
    """Measures its steps by a clock of its hooks."""

    clock: Clock
    longest = 0.0

    def handle(self, event: Any, now: int | None = None) -> None:
        before = self.clock.now
        super().handle(event, now)
        self.longest = max(self.longest, self.clock.now - before)


def timed(clock: Clock, cost: Callable[[list[str]], float], sizes: list[int]) -> TimedDriver:
    """An interval whose calls take so many seconds for the texts of their records. Texts that say so fail."""

    class Timed(mw.BatchComputation[tuple[str, str], int]):
        def process_batch(self, ctx: mw.BatchContext[int], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            texts = [text for _, text in batch.values]
            clock.now += cost(texts)
            sizes.append(len(batch))
            for key in batch.keys:
                ctx.states[key] += 1
            if "fails" in texts or ("down" in texts and Service.now):
                raise ValueError("it fails")

    meter = HookMeter(clock, batch_time=BatchTime(0.01))
    TimedDriver.clock = clock
    driver = TimedDriver(Timed(), meter=meter, on_failure=mw.dead_letter(after=1))
    for _ in range(30):
        driver.deliver(*((f"key {number}", "x", 1) for number in range(1_000)))
        driver.commit_all()
    return driver


def texts(count: int, text: str = "x", **others: str) -> list[tuple[str, str, int]]:
    return [(f"key {number}", others.get(f"key_{number}", text), 1) for number in range(count)]


@pytest.mark.guarantee("G8", section="4.1")
def test_a_quick_call_does_not_make_batches_small() -> None:
    sizes: list[int] = []
    driver = timed(Clock(), lambda given: 1e-5 if "fails" in given or "quick" in given else 0.015, sizes)
    assert max(sizes) == 1_000
    for records in (texts(200, key_7="fails"), [("z", "fails", 1)], [("z", "quick", 1), ("y", "quick", 1)]):
        driver.deliver(*records)
        driver.commit_all()
    del sizes[:]
    for _ in range(3):
        driver.deliver(*texts(1_000))
        driver.commit_all()
    assert len(sizes) < 12
    assert sizes[-1] > 500


@pytest.mark.guarantee("G8", section="4.1")
def test_costly_records_behind_cheap_ones_take_long_once() -> None:
    clock, sizes = Clock(), list[int]()
    driver = timed(clock, lambda given: 0.015 + 0.02 * given.count("dear"), sizes)
    steps: list[float] = []
    for _ in range(4):
        driver.longest = 0.0
        driver.deliver(*texts(100, "dear"))
        driver.commit_all()
        for _ in range(10):
            driver.pass_time(1_000)
        steps.append(driver.longest)
    assert steps[0] > 2.0 > 0.7 > max(steps[2:])


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("earlier", [0, 3])
def test_a_failing_service_does_not_keep_a_step(earlier: int) -> None:
    """Also if the keys had done more in the commit at hand. Each step has one call that fails, and loses nothing."""
    Service.now, clock, sizes = True, Clock(), list[int]()
    driver = timed(clock, lambda given: 0.015, sizes)
    driver.deliver(*texts(1))  # its append is under way
    for _ in range(earlier):
        driver.deliver(*texts(100))
    driver.longest = 0.0
    driver.deliver(*texts(100, "down"))
    for _ in range(3):
        driver.pass_time(1_000)
        driver.commit_all()
    assert driver.longest < 0.031
    Service.now = False
    driver.pass_time(1_000)
    driver.commit_all()
    assert driver.state.counts.row[0] == 30_001 + 100 * earlier + 100


@pytest.mark.guarantee("G13", section="4.1")
def test_a_failing_record_costs_few_calls_late_in_a_commit() -> None:
    sizes: list[int] = []
    driver = timed(Clock(), lambda given: 0.0, sizes)
    driver.deliver(*texts(1))
    for _ in range(7):
        driver.deliver(*texts(1_000))
    del sizes[:]
    driver.deliver(*texts(1_000, key_7="fails"))
    driver.commit_all()
    for _ in range(5):
        driver.pass_time(1_000)
        driver.commit_all()
    assert len(sizes) < 70
    assert driver.state.counts.row[0] == 38_001


@pytest.mark.guarantee("G13", section="4.1")
def test_a_commit_of_a_batch_is_bounded_in_bytes() -> None:
    """A call whose productions fill a commit eight times is undone. The next ones get fewer records."""
    sizes: list[int] = []

    class Large(mw.BatchComputation[tuple[str, str]]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            sizes.append(len(batch))
            ctx.produce("out", ["x" * 1_000] * len(batch))

    limits = IntervalSettings(flush_interval=0, checkpoint_entries=20, batch_bytes=10_000)
    driver = IntervalDriver(Large(), settings=limits)
    driver.deliver(*texts(500))
    assert driver.state.outbox.unacked.bytes < 90_000
    undone = driver.core.meter.records.oversized
    assert undone > 0
    driver.commit_all()
    assert driver.state.outbox.unacked.records == 500
    assert max(sizes[1:]) < 12
    assert sum(sizes) > 500, "an undone call has run in vain"


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("what", ["large productions", "late records between others"])
def test_many_calls_of_one_delivery_share_its_steps(what: str) -> None:
    """After each call, the step ends if the time of a batch is over. The rest is in order."""
    clock, order = Clock(), list[str]()

    class Slow(mw.BatchComputation[tuple[str, str]]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            clock.now += 0.015
            order.extend(text for _, text in batch.values)
            if ("key 0", "large") in batch.values:
                for _ in range(6):
                    ctx.at(0).produce("out", "x" * 500_000)

    meter = HookMeter(clock, batch_time=BatchTime(0.1))
    TimedDriver.clock = clock
    driver = TimedDriver(Slow(), meter=meter, late=mw.divert("late"))
    for _ in range(14):
        driver.deliver(*((f"key {number}", "x", 100) for number in range(1_000)))
        driver.commit_all()
    if what == "large productions":
        driver.deliver(("key 0", "large", 100), ("key 1", "x", 100))
        driver.commit_all()
    else:
        driver.watermark(50)
        driver.commit_all()
    del order[:]
    driver.longest = 0.0
    # Each late record is diverted behind the one before it, so each other one is a call of its own.
    at = (100, 100) if what == "large productions" else (100, 1)
    driver.deliver(*(("hot", str(number), at[number % 2]) for number in range(200)))
    for _ in range(40):
        driver.commit_all()
        driver.pass_time(1_000)
    assert driver.longest < 0.13
    assert order == [str(number) for number in range(0, 200, 1 if at[1] > 1 else 2)]


@pytest.mark.guarantee("G13", section="4.1")
def test_one_large_production_is_forgotten() -> None:
    """Calls for many go on behind it: they show that most records produce little."""
    sizes: list[int] = []

    class Flushing(mw.BatchComputation[tuple[str, str]]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            sizes.append(len(batch))
            if "large" in [text for _, text in batch.values]:
                for _ in range(12):
                    ctx.at(0).produce("out", "x" * 500_000)

    driver = IntervalDriver(Flushing())
    driver.deliver(("a", "large", 1), ("b", "x", 1))
    driver.commit_all()
    assert sizes == [2]
    for _ in range(3):
        driver.deliver(*texts(1_000))
        driver.commit_all()
    assert len(sizes) < 100
    assert max(sizes) > 300


@pytest.mark.guarantee("G8", section="4.1")
def test_deliveries_share_a_commit_again_after_a_failure() -> None:
    clock = Clock()
    driver = timed(clock, lambda given: 0.0001, [])
    driver.deliver(*texts(10, key_3="fails"))
    driver.commit_all()
    driver.deliver(*texts(1))  # its append is under way
    for _ in range(50):
        driver.deliver(*texts(10))
    commits = 0
    while any(isinstance(effect, AppendEntry) for effect in driver.waiting):
        driver.commit()
        commits += 1
    assert commits < 5


@pytest.mark.guarantee("G8", section="4.1")
def test_records_of_a_stream_without_batches_have_a_pace() -> None:
    """They come one by one, and as many in a step as single records."""
    clock, sizes = Clock(), list[int]()
    driver = timed(clock, lambda given: (0.003 if "slow" in given else 0.001) * len(given), sizes)
    pace, program = driver.core.meter.records, cast("Any", driver.state.program.batches)
    pace.pace, pace.calls = 0.0, 0
    program.forms.clear()
    for _ in range(3):
        driver.longest = 0.0
        driver.deliver(*texts(100))
        driver.commit_all()
    assert 0.005 < driver.longest < 0.03
    driver.deliver(*texts(100, "slow"))
    driver.commit_all()
    assert pace.pace > 0.0015
    assert set(sizes[-100:]) == {1}


@pytest.mark.guarantee("G8", section="4.1")
@pytest.mark.parametrize("many", [False, True])
def test_slow_failing_keys_do_not_stop_other_keys(many: bool) -> None:
    """Keys that fail one after the other, and always one of them is ready, are tried once in a step."""
    clock, ran = Clock(), list[str]()

    class One(mw.Computation[tuple[str, str]]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[tuple[str, str]]) -> None:
            run_text(record.value[1])

    class Many(mw.BatchComputation[tuple[str, str]]):
        def process_batch(self, ctx: mw.BatchContext[None], batch: mw.RecordBatch[tuple[str, str]]) -> None:
            for _, text in batch.values:
                run_text(text)

    def run_text(text: str) -> None:
        clock.now += 0.1 if text == "down" else 0.0001
        if text == "down":
            raise ValueError("it is down")
        ran.append(text)

    meter = HookMeter(clock, batch_time=BatchTime(0.1))
    driver = IntervalDriver(Many() if many else One(), meter=meter, on_failure=mw.retry(maximum=mw.seconds(2)))
    driver.deliver(("healthy", "1", 1))
    driver.deliver(*texts(40, "down"))
    for _ in range(10):
        driver.commit_all()
        driver.pass_time(4 * SECOND)
    driver.now += 10 * SECOND  # all of them are ready
    driver.deliver(("healthy", "2", 1))
    assert ran == ["1", "2"]


class Clock:
    """A clock that hooks move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
