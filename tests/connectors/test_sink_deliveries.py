"""Sinks take their records by delivery: the batches are those of one record after the other (4.3, 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.sdk.compiled import compile_computation
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.messages import Delivery
from tests.connectors.given import Store, Table, at, running

deliver = IntervalReceiver.deliver


class Bid(msgspec.Struct, tag=True):
    auction: int
    note: str = ""


class Person(msgspec.Struct, tag=True):
    name: str


def discounted(bid: Bid) -> Bid:
    """Another value of the same type."""
    return Bid(bid.auction, bid.note + "!")


def bid_of(person: Person) -> Bid:
    """A value of another type."""
    return Bid(7, person.name)


def marked(event: Any) -> bool:
    """Changes what it reads."""
    if isinstance(event, Bid):
        event.note += "?"
    return True


def others(event: Any) -> list[Any]:
    """What ``marked`` lets pass, and the event itself."""
    return [Bid(event.auction, event.note + "?") if isinstance(event, Bid) else event, event]


WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], list[Any]]]] = {
    "as they are": (lambda events: events, lambda event: [event]),
    "only": (lambda events: events.only(Bid), lambda event: [event] if isinstance(event, Bid) else []),
    "filter": (
        lambda events: events.only(Bid).filter(lambda bid: bid.auction != 3),
        lambda event: [event] if isinstance(event, Bid) and event.auction != 3 else [],
    ),
    "map": (
        lambda events: events.only(Bid).map(discounted, Bid),
        lambda event: [discounted(event)] if isinstance(event, Bid) else [],
    ),
    "a map beside a kind": (
        lambda events: events.only(Person).map(bid_of, Bid).union(events.only(Bid)),
        lambda event: [event] if isinstance(event, Bid) else [bid_of(event)],
    ),
    "a changing filter beside all": (lambda events: events.filter(marked).union(events), others),
}
"""The ways from a stream of events to a sink, and what it gets of one event."""


def topology(store: Store, way: str, shards: int) -> mw.Topology:
    built = mw.Topology("auction")
    events: Any = built.source("events", Bid | Person)
    bids = WAYS[way][0](events)
    if way not in ("as they are", "a changing filter beside all"):
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
@pytest.mark.parametrize("way", WAYS)
@given(sent=deliveries, shards=st.integers(1, 2))
def test_batches_are_those_of_single_records(way: str, sent: list[list[tuple[Any, int]]], shards: int) -> None:
    one_by_one = [[record] for records in sent for record in records]
    assert written(sent, way, shards) == written(one_by_one, way, shards)


@pytest.mark.guarantee("G1", "G15", section="4.3")
@pytest.mark.parametrize("way", WAYS)
@given(sent=deliveries)
def test_a_sink_gets_what_the_steps_make(way: str, sent: list[list[tuple[Any, int]]]) -> None:
    batches = written(sent, way, 1)
    made = [one for records in sent for event, _ in records for one in WAYS[way][1](event)]
    assert [value for place in sorted(batches) for value, _ in batches[place]] == made


@contextmanager
def delivered_as(change: Callable[[bytes], bytes]) -> Iterator[None]:
    """The middle one of three records that come together has other bytes: a client of another kind sends it."""

    def changed(receiver: IntervalReceiver, delivery: Delivery) -> Any:
        if len(delivery.values) == 3:
            delivery.values = [delivery.values[0], change(delivery.values[1]), delivery.values[2]]
        return deliver(receiver, delivery)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(IntervalReceiver, "deliver", changed)
        yield


@pytest.mark.guarantee("G1", section="4.3")
def test_a_damaged_record_is_in_no_batch() -> None:
    """A client of another kind may send any bytes. In a batch they would stop the sink for good."""
    store = Store()
    with delivered_as(lambda _: b"\xc1"), running(topology(store, "as they are", 1)) as harness:
        harness.send_all("events", [(Bid(1), at(1)), (Bid(2), at(2))])
        with pytest.raises(mw.ValueDecodeError, match="stream 'events'"):
            harness.send_all("events", [(Bid(number), at(number)) for number in (3, 4, 5)])
        with suppress(mw.ValueDecodeError):
            harness.advance_clock(mw.milliseconds(500))
        assert [bid.auction for bid in store.values()] == [1, 2, 3]


numbers = count()


class Numbered(msgspec.Struct):
    text: str
    number: int = msgspec.field(default_factory=numbers.__next__)


@pytest.mark.guarantee("G1", section="6.1")
def test_a_batch_that_comes_again_has_the_same_defaults() -> None:
    """A sender with a former type has no such field. What a factory makes for it is made once."""
    store, built = Store(breaks_after=2), mw.Topology("texts")
    built.source("texts", Numbered).to("table", Table(store), shards=1, batch_records=3)
    with delivered_as(lambda _: msgspec.msgpack.encode({"text": "b"})), running(built) as harness:
        with suppress(TimeoutError):
            harness.send_all("texts", [(Numbered(text, -1), at(1)) for text in "abc"])
        for _ in range(3):
            with suppress(TimeoutError):
                harness.advance_clock(mw.seconds(60))
        assert [one.text for one in store.values()] == ["a", "b", "c"]
        assert store.breaks_after == 0


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
    ("way", "same"),
    [
        ("as they are", True),
        ("only", True),
        ("filter", True),
        ("map", False),
        ("a map beside a kind", False),
        ("a changing filter beside all", False),
    ],
)
def test_encodings_are_taken_where_values_stay(way: str, same: bool) -> None:
    program = compile_computation(topology(Store(), way, 1), "table-batches").batches
    assert program is not None
    assert [one.same_encoding for one in program.called.values()] == [same]


def test_a_function_that_may_change_values_makes_others() -> None:
    def keep(bid: Any) -> bool:
        bid.note = "changed"
        return True

    store, built = Store(), mw.Topology("auction")
    built.source("bids", Bid).filter(keep).to("table", Table(store))
    program = compile_computation(built, "table-batches").batches
    assert program is not None
    assert not program.forms["bids"].same_encoding
