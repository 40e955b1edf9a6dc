"""What a worker measures of its intervals and logs, and how Prometheus gets it."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import Metric

import millwheel as mw
from millwheel.worker import messages as m
from millwheel.worker.interval import HookMeter, IntervalSettings
from millwheel.worker.interval.measures import Distribution
from millwheel.worker.process.measure_metrics import MeasureCollector
from millwheel.worker.process.tallies import Tallies
from millwheel.worker.process.traffic import TrafficMeter
from tests.worker.interval.driver import IntervalDriver
from tests.worker.log.driver import SMALL, LogDriver, fill

PLACE = ("topology", "test")
SECOND = 1_000_000


class Repeat(mw.Computation[tuple[str, str], int]):
    """Produces each value, and counts those of a key. It fails for "bad"."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "bad":
            raise ValueError("bad")
        ctx.state += 1
        ctx.produce("out", record.value[1])


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """An interval in a worker's process, and its metrics."""

    def __init__(self, settings: IntervalSettings | None = None) -> None:
        self.clock, self.tallies, self.logs = Clock(), Tallies(), list[LogDriver]()
        meter = HookMeter(self.clock, measures=self.tallies.measures_of(PLACE))
        self.driver = IntervalDriver(Repeat(), settings=settings, meter=meter)
        self.tallies.enter("test.1.j1", PLACE, self.driver.core)

    def metric(self, name: str) -> Metric:
        logs = [log.core for log in self.logs]
        collector = MeasureCollector(self.tallies, lambda: logs, lambda: self.driver.now)
        return next(one for one in collector.collect() if one.name == name)

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """The samples of a metric, by their labels without the place."""
        return {tuple(one.labels.values())[2:]: one.value for one in self.metric(name).samples}

    def total(self, name: str) -> tuple[float, float]:
        """The number and the sum of a distribution's values."""
        found = {one.name.removeprefix(name): one.value for one in self.metric(name).samples}
        return found["_count"], found["_sum"]

    def lag(self) -> float:
        return self.values("millwheel_system_lag_seconds")[()]


@given(values=st.lists(st.tuples(st.floats(-1, 9), st.integers(1, 5))))
def test_a_distribution_counts_values_up_to_each_bound(values: list[tuple[float, int]]) -> None:
    bounds = (0.5, 2.0, 8.0)
    distribution = Distribution(bounds)
    for value, times in values:
        distribution.add(value, times)
    for place, bound in enumerate(bounds):
        assert sum(distribution.counts[: place + 1]) == sum(times for value, times in values if value <= bound)
    assert sum(distribution.counts) == sum(times for _, times in values)
    assert bisect_left(bounds, 2.0) == 1, "a bound belongs to the values up to it"


def test_times_run_from_receipt_to_commit_and_then_to_the_ack() -> None:
    worker = Worker()
    driver = worker.driver
    driver.deliver(("a", "x", 1), ("b", "y", 2))
    driver.now += 2 * SECOND
    worker.clock.now += 0.25
    driver.commit()
    assert worker.total("millwheel_commit_latency_seconds") == (2, 4.0)
    assert worker.total("millwheel_append_seconds") == (1, 0.25)
    assert worker.total("millwheel_entry_records") == (1, 2)
    assert worker.total("millwheel_entry_bytes")[1] == len(driver.entries[0])
    (first, *rest) = driver.take(m.SendDelivery)
    assert not rest
    driver.handle(m.Acknowledged(first.delivery.token, []), driver.now + 3 * SECOND)
    assert worker.total("millwheel_ack_latency_seconds")[0] == 2


def test_the_system_lag_is_the_wait_of_the_oldest_work() -> None:
    worker = Worker()
    driver = worker.driver
    assert worker.lag() == 0
    driver.deliver(("a", "bad", 1))
    driver.now += 5 * SECOND
    driver.deliver(("b", "x", 1))
    driver.commit_all()
    driver.now += 1 * SECOND
    assert worker.lag() == 6, "the record of the failing key waits"
    done = Worker()
    done.driver.deliver(("a", "x", 1))
    done.driver.now += 4 * SECOND
    assert done.lag() == 4, "the record waits for its commit"
    done.driver.commit()
    done.driver.now += 1 * SECOND
    assert done.lag() == 5, "its production waits for its ACK, since it was sealed"
    (send,) = done.driver.take(m.SendDelivery)
    done.driver.handle(m.Acknowledged(send.delivery.token, []))
    assert done.lag() == 0


def test_a_large_delivery_is_not_as_old_as_its_first_record() -> None:
    """Regression: all records of an outage came together. For minutes, the oldest one seemed to stay in the queue."""
    worker = Worker(IntervalSettings(batch_records=10))
    driver = worker.driver
    records = [(f"k{number % 5}", "x", number) for number in range(100)]
    driver.deliver(*records, waited=200 * SECOND, span=100 * SECOND)
    assert worker.lag() == 200
    driver.commit()
    assert worker.lag() == 190, "a tenth of the records is committed, and the others came later"
    for _ in range(5):
        driver.commit()
    assert worker.lag() == 140
    driver.commit_all()
    for send in driver.take(m.SendDelivery):
        driver.handle(m.Acknowledged(send.delivery.token, []))
    driver.deliver(("a", "bad", 1), *[("b", "x", 1)] * 9, waited=200 * SECOND, span=100 * SECOND)
    driver.commit_all()
    assert worker.lag() == 200, "its first record waits, and the others are committed"


def test_a_key_that_is_tried_again_makes_no_record_younger() -> None:
    """Regression: during each attempt at a failing key, its record seemed to have come as late as the last one."""
    driver = IntervalDriver(Repeat())
    driver.deliver(("a", "bad", 1), *[("b", "x", 1)] * 9, waited=200 * SECOND, span=100 * SECOND)
    driver.commit_all()
    (receipt,) = driver.state.intake.unfinished
    blocked = receipt.came_at()
    driver.state.intake.requeue([(receipt, 0)])
    assert receipt.came_at() == blocked


def test_a_part_of_a_delivery_is_as_old_as_the_whole() -> None:
    worker = Worker()
    driver = worker.driver
    sent = driver.deliver(("a", "x", 1), ("b", "x", 2))
    driver.commit_all()
    for send in driver.take(m.SendDelivery):
        driver.handle(m.Acknowledged(send.delivery.token, []))
    driver.position -= len(sent.keys)
    driver.deliver(("a", "x", 1), ("b", "x", 2), ("c", "x", 3), waited=30 * SECOND, span=20 * SECOND)
    assert worker.lag() == 30, "two are known, and nothing is known of the third"


def test_what_is_repeated_after_a_takeover_does_not_come_now() -> None:
    """Regression: twice as many records came as really did. Their owner before had received the others."""
    worker = Worker()
    driver, measures = worker.driver, worker.tallies.measures_of(PLACE)
    driver.deliver(*[("a", "x", 1)] * 300, waited=60 * SECOND)
    driver.now += 2 * SECOND
    driver.deliver(*[("a", "x", 1)] * 20, waited=1 * SECOND)
    driver.deliver(*[("a", "x", 1)] * 9, waited=3 * SECOND)
    (one,) = TrafficMeter(0.0).traffic(10.0, {PLACE: measures})
    assert [of.records_per_second for of in one.streams] == [2.0]
    assert worker.values("millwheel_received_records") == {("in",): 329}, "the count has all of them"


def test_the_first_records_after_a_takeover_are_a_rate() -> None:
    """Regression: the edge to a new interval showed no records, if all came in one delivery."""
    worker = Worker()
    driver, measures = worker.driver, worker.tallies.measures_of(PLACE)
    driver.now += 1 * SECOND
    driver.deliver(*[("a", "x", 1)] * 300, waited=1_000)
    (one,) = TrafficMeter(0.0).traffic(10.0, {PLACE: measures})
    assert [of.records_per_second for of in one.streams] == [30.0]


def test_work_waits_since_its_sender_had_it() -> None:
    """A new owner, or one that registers again, gets all records again. Their wait goes on."""
    worker = Worker()
    driver = worker.driver
    driver.deliver(("a", "x", 1), waited=20 * SECOND)
    driver.deliver(("b", "x", 1), waited=90 * SECOND)
    driver.now += 1 * SECOND
    assert worker.lag() == 91, "another sender's record has waited for longer"
    driver.commit_all()
    assert worker.total("millwheel_commit_latency_seconds") == (2, 2.0), "it counts from the receipt"
    driver.take(m.SendDelivery)
    driver.handle(m.Resend(None), driver.now + 4 * SECOND)
    assert max(send.delivery.waited for send in driver.take(m.SendDelivery)) == 5 * SECOND


def test_records_and_refusals_count_by_stream() -> None:
    worker = Worker()
    worker.driver.deliver(("a", "x", 1), ("b", "y", 2))
    worker.driver.position = 0
    worker.driver.deliver(("a", "x", 1), ("b", "y", 2))
    assert worker.values("millwheel_received_records") == {("in",): 2}, "a duplicate is not fresh"
    assert worker.values("millwheel_received_bytes") == {("in",): 2 * len(b"\x92\xa1a\xa1x")}
    for answer in worker.driver.take(m.AnswerDelivery):
        worker.tallies.refused.add(PLACE, answer.delivery, answer.outcome)
    assert worker.values("millwheel_refused_deliveries") == {("in", "p", "full"): 1}


def test_unacked_records_show_whose_they_are() -> None:
    worker = Worker()
    worker.driver.deliver(("a", "x", 1), ("b", "y", 2), ("c", "bad", 3))
    assert worker.values("millwheel_unacked_records") == {("in", "p"): 3}
    worker.driver.commit_all()
    assert worker.values("millwheel_unacked_records") == {("in", "p"): 1}, "the record of the failing key"


def test_an_interval_without_room_is_a_full_one() -> None:
    worker = Worker(IntervalSettings(queue_records=2))
    assert worker.values("millwheel_full_intervals") == {(): 0}
    worker.driver.deliver(("a", "bad", 1), ("b", "bad", 2))
    assert worker.values("millwheel_full_intervals") == {(): 1}


def test_a_log_above_its_cap_is_a_full_one() -> None:
    worker, log = Worker(), LogDriver(SMALL)
    worker.logs.append(log)
    log.subscribe("reader")
    log.run()
    (sample,) = worker.metric("millwheel_log_full").samples
    assert (sample.labels, sample.value) == ({"stream": "windows"}, 0)
    sent = 0
    while log.core.state.records.kept < SMALL.cap_bytes:
        fill(log, sent, 1)
        sent += 1
    (sample,) = worker.metric("millwheel_log_full").samples
    assert sample.value == 1


def test_each_call_of_a_hook_counts_with_the_mean_of_its_batch() -> None:
    worker = Worker()
    worker.driver.deliver(("a", "x", 1), ("b", "y", 2))
    buckets = {
        one.labels["le"]: one.value
        for one in worker.metric("millwheel_hook_call_seconds").samples
        if one.name.endswith("_bucket") and one.labels["hook"] == "process_record"
    }
    assert buckets["1e-06"] == buckets["+Inf"] == 2


def test_measures_go_on_when_an_interval_comes_back() -> None:
    worker = Worker()
    worker.driver.deliver(("a", "x", 1))
    worker.driver.commit()
    worker.tallies.leave("test.1.j1")
    assert worker.total("millwheel_commit_latency_seconds")[0] == 1
    worker.tallies.keep(set())
    assert worker.metric("millwheel_commit_latency_seconds").samples == []


def test_a_log_shows_what_it_keeps_and_cursors_lags() -> None:
    worker, log = Worker(), LogDriver()
    worker.logs.append(log)
    log.subscribe("reader")
    values = fill(log, 0, 3)
    shown = {
        name: {tuple(one.labels.values()): one.value for one in worker.metric(f"millwheel_{name}").samples}
        for name in ("log_records", "log_bytes", "log_appended_records", "cursor_lag_records")
    }
    assert shown["log_records"] == shown["log_appended_records"] == {("windows",): 3}
    assert shown["log_bytes"][("windows",)] >= sum(map(len, values))
    assert shown["cursor_lag_records"] == {("windows", "reader"): 3}
