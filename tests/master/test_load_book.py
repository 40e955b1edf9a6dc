"""The loads that workers report, and the key that halves an interval's load (section 7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.master.load_book import LoadBook, divide, merged_hooks, merged_traffic
from millwheel.model.catalog import Catalog
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.model.time import Timestamp, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import inspection_pb2 as wire

KEYS = st.binary(min_size=1, max_size=3)


def sample(shares: dict[bytes, float]) -> list[wire.KeyLoad]:
    return [wire.KeyLoad(key=key, share=share) for key, share in shares.items()]


def reported(*intervals: wire.IntervalLoad, cpu: float = 0.0) -> wire.GetWorkerLoadResponse:
    return wire.GetWorkerLoadResponse(cpu=cpu, memory_limit_bytes=1_000, intervals=intervals)


@given(st.dictionaries(KEYS, st.integers(1, 100), min_size=2, max_size=30))
def test_the_key_chosen_divides_no_worse_than_any_other(weights: dict[bytes, int]) -> None:
    total = sum(weights.values())
    division = divide(ALL_KEYS, sample({key: weight / total for key, weight in weights.items()}))
    assert division is not None

    def smaller(at: bytes) -> float:
        lower = sum(weight for key, weight in weights.items() if key < at) / total
        return min(lower, 1 - lower)

    assert abs(smaller(division.at) - division.smaller) < 1e-9
    assert division.smaller >= max(smaller(key) for key in weights) - 1e-9
    assert division.smaller > 0


@given(st.dictionaries(KEYS, st.floats(0.001, 0.02), max_size=30), KEYS, KEYS)
def test_the_chosen_key_is_within_and_leaves_keys_on_both_sides(
    shares: dict[bytes, float], one: bytes, other: bytes
) -> None:
    keys = KeyInterval(min(one, other), max(one, other) + b"\0")
    division = divide(keys, sample(shares))
    inside = [key for key in shares if key in keys]
    assert (division is None) == (len(inside) < 2)
    if division is not None:
        assert division.at in keys
        assert division.at > keys.start
        keys.split(division.at)


def test_load_outside_the_sample_lies_as_the_sampled_keys_do() -> None:
    division = divide(ALL_KEYS, sample({bytes([65 + index]): 0.001 for index in range(10)}))
    assert division is not None
    assert division.at == b"F"
    assert abs(division.smaller - 0.5) < 0.01


def test_one_key_is_never_divided() -> None:
    assert divide(ALL_KEYS, sample({b"hot": 1.0})) is None
    assert divide(ALL_KEYS, ()) is None


def test_of_two_that_speak_of_an_interval_the_later_owner_counts() -> None:
    book = LoadBook()
    book.on_load("w2", reported(wire.IntervalLoad(journal="c.1.j2", sequencer=9, busy=0.4)), Timestamp(1))
    book.on_load("w1", reported(wire.IntervalLoad(journal="c.1.j2", sequencer=5, busy=0.9)), Timestamp(2))
    interval = catalog.IntervalRecord(journal="c.1.j2", sequencer=9)
    load = book.load_of(interval)
    assert load is not None
    assert load.busy == 0.4
    interval.sequencer = 11
    assert book.load_of(interval) is None, "its next owner has reported nothing yet"
    assert book.cost(interval) == 0.4, "but it will hardly cost something else"


def test_costs_are_smoothed_and_count_memory() -> None:
    book = LoadBook()
    for busy in (0.0, 1.0, 1.0):
        load = wire.IntervalLoad(journal="c.1.j2", sequencer=9, busy=busy, cached_bytes=100)
        book.on_load("w1", reported(load, cpu=busy + 0.25), Timestamp(1))
    assert abs(book.costs()["c.1.j2"] - (0.75 + 0.1)) < 1e-9
    assert abs(book.workers["w1"].base - 0.25) < 1e-9


def test_a_child_is_taken_to_cost_its_part_of_its_parents() -> None:
    book = LoadBook()
    parents = [wire.IntervalLoad(journal=name, sequencer=3, busy=busy) for name, busy in (("a", 0.4), ("b", 0.2))]
    book.on_load("w1", reported(*parents), Timestamp(1))
    half = catalog.IntervalRecord(journal="c", parents=[catalog.ParentJournal(journal="a")])
    both = catalog.IntervalRecord(journal="c", parents=[catalog.ParentJournal(journal=name) for name in "ab"])
    assert abs(book.cost(half) - 0.2) < 1e-9
    assert abs(book.cost(both) - 0.6) < 1e-9


def test_a_worker_that_falls_silent_is_known_to_be() -> None:
    book = LoadBook()
    book.on_load("w1", reported(), Timestamp(seconds(100)))
    assert book.is_fresh("w1", Timestamp(seconds(105)), seconds(10))
    assert not book.is_fresh("w1", Timestamp(seconds(111)), seconds(10))
    assert not book.is_fresh("w2", Timestamp(seconds(100)), seconds(10))


def test_only_who_was_asked_and_reports_nothing_is_silent() -> None:
    book = LoadBook()
    assert not book.is_silent("w1", Timestamp(seconds(999)), seconds(10))
    for at in (100, 108):
        book.on_request("w1", Timestamp(seconds(at)))
    assert not book.is_silent("w1", Timestamp(seconds(110)), seconds(10))
    assert book.is_silent("w1", Timestamp(seconds(111)), seconds(10))
    book.on_load("w1", reported(), Timestamp(seconds(112)))
    assert not book.is_silent("w1", Timestamp(seconds(122)), seconds(10))
    assert book.is_silent("w1", Timestamp(seconds(123)), seconds(10))


def test_hook_times_are_sums_over_the_workers_that_there_are() -> None:
    book = LoadBook()
    for name in ("w1", "w2"):
        load = wire.GetWorkerLoadResponse()
        load.hooks.add(topology="t", computation="c", time=wire.HookTime(hook="process_record", calls=3, seconds=1.5))
        load.hooks.add(topology="other", computation="c", time=wire.HookTime(hook="process_record", calls=9))
        book.on_load(name, load, Timestamp(0))
    (time,) = book.hooks("t")["c"]
    assert (time.hook, time.calls, time.seconds) == ("process_record", 6, 3.0)
    assert book.hooks("none") == {}


def test_times_of_a_hook_add_up_over_intervals() -> None:
    figures: dict[str, Any] = {"calls": 2, "seconds": 0.5, "failures": 1, "blocked": 3, "by_columns": 4, "oversized": 5}
    parts = [wire.HookTime(hook=hook, **figures) for hook in ("b", "a", "b")]
    twice = {name: 2 * figure for name, figure in figures.items()}
    assert merged_hooks(parts) == [wire.HookTime(hook="a", **figures), wire.HookTime(hook="b", **twice)]


def test_what_keeps_records_from_columns_is_that_of_any_worker() -> None:
    book = LoadBook()
    inputs = [wire.InputColumns(stream="t/in", by_values="its key is computed by code")]
    given: list[dict[str, Any]] = [{}, {"inputs": inputs}, {"by_records": "columns are off"}, {"inputs": inputs}]
    for number, one in enumerate(given):
        load = wire.GetWorkerLoadResponse()
        load.columns.add(topology="t", computation="c", **one)
        load.columns.add(topology="t", computation="b", **one if number < 2 else {})
        load.columns.add(topology="other", computation="c")
        book.on_load(f"w{number}", load, Timestamp(0))
    found = [(one.computation, one.by_records, list(one.inputs)) for one in book.columns("t")]
    assert found == [("b", "", inputs), ("c", "columns are off", [])]
    assert book.columns("none") == []


def test_traffic_of_processes_adds_up_and_weighs_latencies() -> None:
    def part(committed: float, latency: float, **rates: float) -> wire.ComputationTraffic:
        streams = [wire.StreamTraffic(stream=name, records_per_second=one) for name, one in rates.items()]
        return wire.ComputationTraffic(committed_per_second=committed, commit_latency_seconds=latency, streams=streams)

    whole = merged_traffic([part(30.0, 0.1, b=20.0, a=10.0), part(10.0, 0.5, b=10.0), part(0.0, 0.0)])
    assert [(one.stream, one.records_per_second) for one in whole.streams] == [("a", 10.0), ("b", 30.0)]
    assert (whole.committed_per_second, round(whole.commit_latency_seconds, 6)) == (40.0, 0.2)
    assert merged_traffic([]) == wire.ComputationTraffic()


def test_appends_are_those_of_all_workers() -> None:
    book = LoadBook()
    assert book.appends() == (0.0, 0.0)
    for worker, rate, mean in (("a", 30.0, 0.1), ("b", 10.0, 0.5)):
        load = reported()
        load.traffic.add(appends_per_second=rate, append_seconds=mean)
        book.on_load(worker, load, Timestamp(0))
    rate, mean = book.appends()
    assert (rate, round(mean, 6)) == (40.0, 0.2)


def test_trends_of_very_many_intervals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an outage of all workers, each interval may be behind."""
    monkeypatch.setattr("millwheel.master.load_book.MAX_TRENDS", 2)

    def report(book: LoadBook, at: int, **lags: float) -> list[bool]:
        loads = [wire.IntervalLoad(journal=name, sequencer=1, system_lag_seconds=lag) for name, lag in lags.items()]
        book.on_load("w1", reported(*loads), Timestamp(seconds(at)))
        return [book.intervals[name].pace is not None for name in lags]

    book = LoadBook()
    report(book, 0, a=90, b=90, c=90, d=29)
    assert report(book, 30, a=90, b=90, c=90, d=29) == [True, True, False, False]
    assert book.intervals["c"].come is None, "it cannot be said"
    assert report(book, 40, a=90, b=0, c=90, d=29) == [True, False, False, False]
    assert report(book, 70, a=90, b=0, c=90, d=29) == [True, False, True, False], "there is room for another"
    book.forget_gone(Catalog())
    report(book, 80, e=90, f=90)
    assert report(book, 110, e=90, f=90) == [True, True], "those before are gone"
