"""The traffic of a worker's computations: rates by stream, and the latency of commits, over the last seconds."""

from __future__ import annotations

from millwheel.worker.interval.measures import IntervalMeasures
from millwheel.worker.process.load import LoadMeter
from millwheel.worker.process.traffic import TrafficMeter

PLACE = ("shop", "accounts")


def receive(measures: IntervalMeasures, stream: str, records: int, size: int) -> None:
    measures.received[stream][0] += records
    measures.received[stream][1] += size


def test_each_stream_has_its_own_rates() -> None:
    meter, measures = TrafficMeter(-100.0), IntervalMeasures()
    receive(measures, "shop/orders", 1_000, 9_000)
    receive(measures, "shop/prices", 0, 0)
    meter.traffic(0.0, {PLACE: measures})
    receive(measures, "shop/orders", 400, 8_000)
    receive(measures, "shop/prices", 20, 100)
    (one,) = meter.traffic(20.0, {PLACE: measures})
    assert (one.topology, one.computation) == PLACE
    rates = [(of.stream, of.records_per_second, of.bytes_per_second) for of in one.streams]
    assert rates == [("shop/orders", 20.0, 400.0), ("shop/prices", 1.0, 5.0)]


def test_the_latency_is_that_of_the_last_seconds() -> None:
    meter, measures = TrafficMeter(-100.0), IntervalMeasures()
    measures.commit_latency.add(60.0, 100)
    meter.traffic(0.0, {PLACE: measures})
    measures.commit_latency.add(0.25, 40)
    (one,) = meter.traffic(20.0, {PLACE: measures})
    assert (one.committed_per_second, round(one.commit_latency_seconds, 6)) == (2.0, 0.25)
    for second in range(21, 50):
        (one,) = meter.traffic(float(second), {PLACE: measures})
    assert (one.committed_per_second, one.commit_latency_seconds) == (0.0, 0.0)


def test_appends_have_a_rate_and_a_mean_time() -> None:
    meter, measures = TrafficMeter(-100.0), IntervalMeasures()
    meter.traffic(0.0, {PLACE: measures})
    measures.append_seconds.add(0.01, 30)
    measures.append_seconds.add(0.04, 10)
    (one,) = meter.traffic(20.0, {PLACE: measures})
    assert (one.appends_per_second, round(one.append_seconds, 6)) == (2.0, 0.0175)


def test_a_computation_that_is_gone_is_forgotten() -> None:
    meter, measures = TrafficMeter(-100.0), IntervalMeasures()
    receive(measures, "shop/orders", 5, 50)
    meter.traffic(0.0, {PLACE: measures})
    assert meter.traffic(1.0, {}) == []
    again = IntervalMeasures()
    receive(again, "shop/orders", 3, 30)
    (one,) = meter.traffic(2.0, {PLACE: again})
    assert one.streams[0].records_per_second == 3.0, "it has begun again, after the last look"


def test_the_first_records_of_a_stream_are_a_rate() -> None:
    meter, measures = TrafficMeter(1.0), IntervalMeasures()
    receive(measures, "shop/orders", 50, 500)
    (one,) = meter.traffic(3.0, {PLACE: measures})
    assert one.streams[0].records_per_second == 25.0


def test_a_load_report_has_the_traffic() -> None:
    measures = IntervalMeasures()
    receive(measures, "shop/orders", 5, 50)
    load = LoadMeter(list, measures=lambda: {PLACE: measures}).load()
    assert [one.streams[0].stream for one in load.traffic] == ["shop/orders"]
