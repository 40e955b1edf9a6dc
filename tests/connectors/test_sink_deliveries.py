"""Sinks take their records by delivery: the batches are those of one record after the other (4.3, 6.1)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.sdk.batches.records import DeliveredEncoding
from millwheel.sdk.compiled import compile_computation
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.messages import Delivery
from tests.connectors.given import Numbers, Store, Table, World, at, running

deliver = IntervalReceiver.deliver


class Bid(msgspec.Struct, tag=True):
    auction: int
    note: str = ""


class Person(msgspec.Struct, tag=True):
    name: str


def discounted(bid: Bid) -> Bid:
    """Another value of the same type."""
    return Bid(bid.auction, bid.note + "!")


def topology(store: Store, way: str, shards: int) -> mw.Topology:
    built = mw.Topology("auction")
    events: Any = built.source("events", Bid | Person)
    bids = {
        "as they are": lambda: events,
        "only": lambda: events.only(Bid),
        "filter": lambda: events.only(Bid).filter(lambda bid: bid.auction != 3),
        "map": lambda: events.only(Bid).map(discounted, Bid),
    }[way]()
    if way != "as they are":
        bids = bids.key_by("auction")
    bids.to("table", Table(store), shards=shards, batch_records=4)
    return built


notes = st.sampled_from([0, 1, 100, 200_000, 300_000, 600_000])
bids = st.builds(lambda auction, size: Bid(auction, "x" * size), st.integers(0, 5), notes)
events = st.one_of(bids, bids, st.just(Person("Ann")))
deliveries = st.lists(st.lists(st.tuples(events, st.integers(0, 60)), min_size=1, max_size=9), max_size=5)


def written(sent: list[list[tuple[Any, int]]], way: str, shards: int) -> dict[Any, Any]:
    """The batches by their places, of records that come so together."""
    store = Store()
    with running(topology(store, way, shards)) as harness:
        for records in sent:
            harness.send_all("events", [(value, at(second)) for value, second in records])
        harness.advance_clock(mw.seconds(1))
    return store.batches


@pytest.mark.guarantee("G15", section="4.3")
@pytest.mark.parametrize("way", ["as they are", "only", "filter", "map"])
@given(sent=deliveries, shards=st.integers(1, 2))
def test_batches_are_those_of_single_records(way: str, sent: list[list[tuple[Any, int]]], shards: int) -> None:
    one_by_one = [[record] for records in sent for record in records]
    assert written(sent, way, shards) == written(one_by_one, way, shards)


@pytest.mark.guarantee("G1", section="4.3")
def test_a_damaged_record_is_in_no_batch() -> None:
    """A client of another kind may send any bytes. In a batch they would stop the sink for good."""
    store = Store()

    def damaged(receiver: IntervalReceiver, delivery: Delivery) -> Any:
        if len(delivery.values) == 3:
            delivery.values = [delivery.values[0], b"\xc1", delivery.values[2]]
        return deliver(receiver, delivery)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(IntervalReceiver, "deliver", damaged)
        with running(topology(store, "as they are", 1)) as harness:
            harness.send_all("events", [(Bid(1), at(1)), (Bid(2), at(2))])
            with pytest.raises(mw.ValueDecodeError, match="stream 'events'"):
                harness.send_all("events", [(Bid(number), at(number)) for number in (3, 4, 5)])
            with suppress(mw.ValueDecodeError):
                harness.advance_clock(mw.milliseconds(500))
            assert [bid.auction for bid in store.values()] == [1, 2, 3]


@pytest.mark.guarantee("G7", section="4.5")
def test_a_batch_is_held_at_the_oldest_of_a_delivery() -> None:
    store = Store()
    with running(topology(store, "only", 1)) as harness:
        harness.send_all("events", [(Bid(1), at(9)), (Bid(2), at(4)), (Bid(3), at(7))])
        harness.advance(at(60))
        assert (harness.watermark("table"), store.values()) == (at(4), [])
        harness.advance_clock(mw.seconds(1))
        assert harness.watermark("table") == at(60)


@pytest.mark.parametrize(
    ("way", "encoding"),
    [
        ("as they are", DeliveredEncoding.SAME),
        ("only", DeliveredEncoding.PROVEN),
        ("filter", DeliveredEncoding.PROVEN),
        ("map", DeliveredEncoding.OTHER),
    ],
)
def test_encodings_are_taken_where_values_stay(way: str, encoding: DeliveredEncoding) -> None:
    program = compile_computation(topology(Store(), way, 1), "table-batches").batches
    assert program is not None
    assert program.forms["events"].encoding is encoding


def test_what_a_computation_has_checked_is_not_decoded() -> None:
    built = mw.Topology("auction")
    built.source("bids", int, Numbers(World({"a": []}))).to("table", Table(Store()))
    for verify, encoding in ((True, DeliveredEncoding.PROVEN), (False, DeliveredEncoding.SAME)):
        program = compile_computation(built, "table-batches", verify=verify).batches
        assert program is not None
        assert program.forms["bids"].encoding is encoding


def test_a_function_that_may_change_values_makes_others() -> None:
    def keep(bid: Any) -> bool:
        bid.note = "changed"
        return True

    store, built = Store(), mw.Topology("auction")
    built.source("bids", Bid).filter(keep).to("table", Table(store))
    program = compile_computation(built, "table-batches").batches
    assert program is not None
    assert program.forms["bids"].encoding is DeliveredEncoding.OTHER
