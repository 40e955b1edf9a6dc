"""One key for all records: nothing is read or made for it, and it is the key that the steps would give (G1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.sdk.compiled import consumers_of
from millwheel.streams.steps import Filter, Map, Only, Step, until_last_filter
from tests.connectors.given import Store, Table, at, running
from tests.streams.test_keys import Event, User, key_of, known


class Page(msgspec.Struct):
    page: int


class Double(msgspec.Struct):
    double: int


EVENTS = [Event(User("a"), 1), Event(None, 2), Event(User("b"), 3)]
Build = Callable[[mw.Stream[Event]], mw.Stream[Any]]


class Failing:
    """A function that counts its calls. It may be set to raise."""

    def __init__(self) -> None:
        self.calls = 0
        self.raises = False

    def __call__(self, event: Event) -> int:
        self.calls += 1
        if self.raises:
            raise ValueError("not now")
        return event.page


def key_function(build: Build, shards: int) -> Callable[[Any], bytes]:
    topology = mw.Topology("site")
    build(topology.source("events", Event)).to("table", Table(Store()), shards=shards)
    [(_, extract)] = consumers_of(topology, "events")
    return extract


def is_odd(page: int) -> bool:
    return page % 2 == 1


def page_of(event: Event) -> int:
    return event.page


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize(
    "build",
    [
        lambda events: events,
        lambda events: events.filter(known),
        lambda events: events.map(page_of, int),
        lambda events: events.filter(known).map(page_of, int),
        lambda events: events.map(page_of, int).filter(is_odd),
        lambda events: events.only(Event),
    ],
)
def test_a_dropped_record_goes_where_it_would_with_many_shards(build: Build) -> None:
    """With one shard, what passes has the key 0. What a filter drops is spread, so that it loads no single interval."""
    one, two = key_function(build, 1), key_function(build, 2)
    for event in EVENTS:
        assert one(event) == (b"0" if two(event) in (b"0", b"1") else two(event))


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize(
    ("build", "same"),
    [
        (lambda events: events, "0"),
        (lambda events: events.filter(mw.col("page") > 1), "0"),
        (lambda events: events.filter(mw.col("page") > 1).select(Page, page=mw.col("page") + 1), "0"),
        (lambda events: events.filter(mw.col("page") > 1).select(Double, double=mw.col("page") * 2), "0"),
        (lambda events: events.select(Double, double=mw.col("page") * 2).filter(mw.col("double") > 1), "0"),
        (lambda events: events.map(page_of, int), "0"),
        (lambda events: events.filter(known).union(events), "0"),
        (lambda events: events.filter(known), None),
        (lambda events: events.filter(mw.col("page") > 1).map(page_of, int), None),
        (lambda events: events.only(Event), None),
    ],
)
def test_one_key_is_declared_where_no_code_is_run(build: Build, same: str | None) -> None:
    topology = mw.Topology("site")
    build(topology.source("events", Event)).to("table", Table(Store()))
    key = topology.plan().computations["table-batches"].inputs["events"].to_proto(Event)
    assert (key.same_key if key.HasField("same_key") else None) == same
    extract = key_function(build, 1)
    if same is not None and not key.rows_by_function:
        assert {extract(event) for event in EVENTS} == {same.encode()}


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("dear", [mw.col("page") > 90, mw.col("page") * 1.5 > 90])
def test_single_records_that_expressions_drop_are_spread(dear: Any) -> None:
    """The key that tables have is for what passes, and the sender of a record sees what passes."""
    topology = mw.Topology("site")
    topology.source("events", Event).filter(dear).to("table", Table(Store()))
    key = topology.plan().computations["table-batches"].inputs["events"].to_proto(Event)
    assert (key.same_key, key.rows_by_function) == ("0", True)
    [(_, extract)] = consumers_of(topology, "events")
    events = [Event(User(str(number)), number) for number in range(99)]
    keys = [extract(event) for event in events]
    assert {key for key, event in zip(keys, events, strict=True) if dear(event)} == {b"0"}
    assert len(set(keys)) > 50


@pytest.mark.paper(section="4.2")
def test_what_filters_drop_is_in_one_interval_for_columns_alone() -> None:
    """A hook for each record makes a value of each row, also of those that are dropped. They are spread."""

    class Hook(mw.Computation[Event]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[Event]) -> None:
            pass

    topology = mw.Topology("site")
    passing = topology.source("events", Event).filter(mw.col("page") > 1).key_by(mw.everything)
    passing.window(windows.tumbling(mw.seconds(1))).aggregate("counts", count=agg.count())
    passing.process("hook", Hook(), {})
    computations = topology.plan().computations
    keys = {name: computations[name].inputs["events"].to_proto(Event) for name in ("counts", "hook")}
    assert {name: key.HasField("same_key") for name, key in keys.items()} == {"counts": True, "hook": False}


class Stock(msgspec.Struct):
    sold: int
    left: int | None = None


class Left(msgspec.Struct):
    sold: int
    left: int


@pytest.mark.paper(section="4.2")
@pytest.mark.parametrize("fails", [mw.col("left") > 1, mw.col("sold") / mw.col("sold") > 0, lambda one: one.left > 1])
@pytest.mark.parametrize("select", [False, True])
def test_a_filter_that_raises_fails_at_the_sender_alone(fails: Any, select: bool) -> None:
    """At the sink it would block all others: a sink leaves none out."""
    store, topology = Store(), mw.Topology("shop")
    passing = topology.source("stock", Stock).filter(fails)
    (passing.select(Left) if select else passing).to("table", Table(store))
    key = topology.plan().computations["table-batches"].inputs["stock"].to_proto(Stock)
    assert not key.HasField("same_key")
    with running(topology) as harness:
        for sold in range(3, 9):
            if sold == 5:
                with pytest.raises(mw.KeyExtractionError):
                    harness.send("stock", Stock(0), at(1))
            harness.send("stock", Stock(sold, sold), at(1))
        harness.advance_clock(mw.seconds(60))
    assert [one.sold for one in store.values()] == [3, 4, 5, 6, 7, 8]


def test_the_key_of_everything_is_declared() -> None:
    key = mw.key(mw.everything).to_proto(Event)
    assert (key.HasField("same_key"), key.same_key) == (True, "")


def test_a_sink_of_one_shard_calls_a_map_once_for_a_record() -> None:
    store, price = Store(), Failing()
    topology = mw.Topology("shop")
    topology.source("events", Event).filter(known).map(price, int).to("table", Table(store), batch_records=1)
    with running(topology) as harness:
        for number, event in enumerate(EVENTS):
            harness.send("events", event, at(number))
    assert (sorted(store.values()), price.calls) == ([1, 3], 2)


def test_a_map_that_raises_is_tried_again_at_the_sink() -> None:
    """It does not refuse the record where it is sent."""
    store, price = Store(), Failing()
    topology = mw.Topology("shop")
    topology.source("events", Event).map(price, int).to("table", Table(store), batch_records=1)
    with running(topology) as harness:
        price.raises = True
        with pytest.raises(ValueError, match="not now"):
            harness.send("events", EVENTS[0], at(1))
        price.raises = False
        harness.advance_clock(mw.seconds(60))
    assert store.values() == [1]


def test_one_key_for_everything_reads_nothing_of_a_record() -> None:
    price = Failing()
    topology = mw.Topology("shop")
    pages = topology.source("events", Event).map(price, int).key_by(mw.everything)
    pages.window(windows.tumbling(mw.seconds(1))).aggregate("count", agg.count())
    [(_, extract)] = consumers_of(topology, "events")
    assert (extract(EVENTS[0]), price.calls) == (b"", 0)


@pytest.mark.guarantee("G1", section="4.2")
def test_the_name_of_a_key_has_all_steps() -> None:
    """An update compares names and code of keys. They stay those of a program that reads the key of each value."""
    assert key_of(lambda events: events.filter(known).map(lambda event: event, Event).key_by(mw.everything)).function


STEPS: st.SearchStrategy[Step] = st.sampled_from([Filter(is_odd), Map(lambda value: value), Only(int), Only(bool)])


@given(st.lists(STEPS, max_size=5))
def test_what_drops_a_record_is_kept(steps: list[Step]) -> None:
    kept = list(until_last_filter(steps))
    assert kept == steps[: len(kept)]
    assert all(isinstance(step, Map) for step in steps[len(kept) :])
    assert not kept or not isinstance(kept[-1], Map)
