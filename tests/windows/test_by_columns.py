"""Windows by columns give what hooks give, through crashes and failures, and for all records (4.2, 4.6; G1, G5, G6)."""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.rpc.columns import RecordColumns
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.receiver import IntervalReceiver
from millwheel.worker.messages import Delivery

NOON = 1_767_268_800_000_000
SECOND = 1_000_000
HOOKS = IntervalSettings(flush_interval=0, checkpoint_entries=20)
COLUMNS = replace(HOOKS, columns_from=1)
SETTINGS = {
    "small": replace(COLUMNS, checkpoint_entries=2, batch_records=3),
    "mixed": replace(COLUMNS, columns_from=3, checkpoint_entries=3),
    "without memory": replace(COLUMNS, columns_bytes=300, cache_bytes=2_000),
    "spilling": replace(COLUMNS, columns_from=2, timers_kept=1, timer_part=1, timer_lead=0, checkpoint_entries=1),
    "full outbox": replace(COLUMNS, outbox_records=1, batch_records=2),
}
NOT_READ = 13
NONE_LEFT = 14
NO_RESULT = 50


class Bid(msgspec.Struct):
    auction: str
    price: int


class Weather:
    """What makes records and results fail, until it has changed, and how many bids their sender reads next."""

    broken = ""
    mends = False
    """Whether it may change. Then nothing fails for ever, and a policy may try it again without end."""
    bad = True
    sending = 0


def checked(bid: Bid) -> Bid:
    """Reads a bid, unless its price is one that cannot be read. The sender can, and so it finds the key."""
    Weather.sending -= 1
    if bid.price == NOT_READ and Weather.bad and Weather.sending < 0:
        raise ValueError("no such price")
    if bid.price == NONE_LEFT and Weather.bad and Weather.sending < 0:
        raise StopIteration
    return bid


def totals(
    late: str | None = None,
    size: int = 10,
    order: str = "nth",
    drops: bool = False,
    judges: bool = True,
    **options: Any,
) -> mw.Topology:
    """``order``: that of the aggregates. ``drops``: whether it drops late records.

    ``judges``: whether results are judged, which needs a context for each. Without that, many are produced at once.
    """

    def judged(one: Any) -> Any:
        if one.auction == Weather.broken or (one.t == NO_RESULT and Weather.bad):
            raise ValueError("no such result")
        return one

    topology = mw.Topology("totals")
    bids = topology.source("bids", Bid).filter(lambda bid: bid.price != 0).map(checked, Bid)
    aggregates = {"n": agg.count(), "t": agg.sum("price"), "h": agg.max("price")}
    windowed: Any = bids.key_by("auction").window(windows.tumbling(mw.seconds(size)))
    several = {name: aggregates[name] for name in order}
    options |= {"late": mw.Late.DROP} if drops else {}
    made = windowed.aggregate("totals", **several, **({} if late is None else {"too_late": late}), options=options)
    if judges:
        made.map(judged, Any).named("judged")
    return topology


keys = st.sampled_from("abc")
prices = st.one_of(st.integers(-5, 5), st.sampled_from([NOT_READ, NONE_LEFT, NO_RESULT, 2**62, -(2**62)]))
send = st.tuples(st.just("send"), st.lists(st.tuples(keys, st.integers(0, 40), prices), min_size=1, max_size=6))
advance = st.tuples(st.just("advance"), st.integers(0, 45))
others = st.sampled_from(
    [("crash", None), ("break", "a"), ("mend", None), ("size", 20), ("size", 10), ("order", "thn")]
)
actions = st.lists(st.one_of(send, send, advance, others), max_size=14)


def as_table(receiver: IntervalReceiver, delivery: Delivery) -> Any:
    """Deliver bids as columns of Arrow, as an injector sends tables."""
    if delivery.stream == "bids" and isinstance(delivery.values, list):
        batch = pa.RecordBatch.from_pylist([msgspec.msgpack.decode(value) for value in delivery.values])
        nulls = {one.name: OF_NULLS.get(one.name, pa.string()) for one in batch.schema if one.type == pa.null()}
        batch = batch.cast(pa.schema([(one.name, nulls.get(one.name, one.type)) for one in batch.schema]))
        records = RecordColumns(batch, array("q", delivery.timestamps), "auction")
        assert list(records) == delivery.values
        delivery.keys, delivery.values, delivery.timestamps = records.keys(), records, records.timestamps
    return deliver(receiver, delivery)


deliver = IntervalReceiver.deliver
OF_NULLS = {"size": pa.int64(), "price": pa.int64(), "weight": pa.float64()}
"""The types of columns of which all values may be null. The others are texts."""


def run(
    actions: list[tuple[str, Any]], limits: IntervalSettings, tables: bool = False, **options: Any
) -> dict[str, Any]:
    """What the topology does, by key and stream in the order of its productions."""
    with pytest.MonkeyPatch.context() as patches:
        if tables:
            patches.setattr(IntervalReceiver, "deliver", as_table)
        return outcome(actions, limits, **options)


def outcome(
    actions: list[tuple[str, Any]], limits: IntervalSettings, mends: bool = False, **options: Any
) -> dict[str, Any]:
    """What the topology does with records in the form that its intervals get."""
    Weather.broken, Weather.mends, Weather.bad = "", mends, True
    kept = dict(options)
    with TopologyHarness(totals(**kept), now=mw.Timestamp(NOON), settings=limits) as harness:
        watermark, watermarks = 0, list[int]()

        def act(kind: str, what: Any) -> None:
            nonlocal watermark
            if kind == "send":
                batch = [(Bid(key, price), mw.Timestamp(NOON + at * SECOND)) for key, at, price in what]
                Weather.sending = sum(bid.price != 0 for bid, _ in batch)
                harness.send_all("bids", batch)
            elif kind == "advance":
                watermark = max(watermark, what)
                harness.advance(mw.Timestamp(NOON + watermark * SECOND))
            elif kind == "crash":
                harness.crash()
            elif kind in ("break", "mend"):
                Weather.broken = what or ""
                Weather.bad = kind == "break" or not Weather.mends
                harness.advance_clock(mw.seconds(100))
            elif kind == "finish":
                harness.finish()
            else:
                kept[kind] = what
                harness.update(totals(**kept))

        for kind, what in [*actions, ("mend", None), ("finish", None), ("mend", None)]:
            with suppress(ValueError, StopIteration, mw.ValueEncodeError):  # what a policy tries again is raised, too
                act(kind, what)
            watermarks.append(harness.watermark("totals"))
        found: dict[str, Any] = {}
        for one in harness.produced("judged" if kept.get("judges", True) else "totals"):
            result = msgspec.to_builtins(one.value)
            found.setdefault(result["auction"], []).append(result)
        for key, results in found.items():  # two windows that end together have no order
            found[key] = [one["end"] for one in results], sorted(results, key=repr)
        found["late"] = sorted(repr(one.value) for one in harness.produced("late")) if kept.get("late") else []
        counts = dict(harness.counts("totals"))
        # The next commit or checkpoint stores it. So a crash before loses it, and the settings here differ in that.
        del counts["duplicates"]
        return found | counts | {"watermarks": watermarks}


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=25)
@given(actions, st.sampled_from([None, "late"]), st.booleans(), st.booleans())
def test_columns_and_hooks_give_the_same(
    name: str, actions: list[Any], late: str | None, tables: bool, judges: bool
) -> None:
    options: dict[str, Any] = {"late": late, "on_failure": mw.dead_letter(after=1), "judges": judges}
    assert run(actions, SETTINGS[name], tables, **options) == run(actions, HOOKS, **options)


def has_encoding(actions: list[tuple[str, Any]]) -> bool:
    """Whether each sum has an encoding, whichever records of a key it has: MessagePack has integers of 64 bits."""
    sums = dict[str, list[int]]()
    for key, _, price in [bid for kind, what in actions if kind == "send" for bid in what]:
        sums.setdefault(key, [0, 0])[price > 0] += price
    return all(least >= -(1 << 63) and most < 1 << 64 for least, most in sums.values())


mixed = st.builds(
    replace,
    st.sampled_from(list(SETTINGS.values())),
    columns_from=st.integers(1, 3),
    batch_records=st.sampled_from([1, 2, 3, 8_192]),
    checkpoint_entries=st.sampled_from([1, 2, 20]),
)


@pytest.mark.guarantee("G1", section="4.2")
@settings(max_examples=120)
@given(actions, mixed, st.sampled_from([None, "late"]), st.booleans())
def test_retried_work_is_done_as_by_hooks(
    actions: list[Any], limits: IntervalSettings, late: str | None, tables: bool
) -> None:
    """Records that cannot be read, and results that cannot be made, are tried again until they can."""
    assume(has_encoding(actions))  # else it depends on the batches whether a commit has a sum that cannot be stored
    options: dict[str, Any] = {"mends": True, "late": late, "on_failure": mw.retry(initial=mw.seconds(1))}
    assert run(actions, limits, tables, **options) == run(actions, HOOKS, **options)


ONE = ("send", [("a", 1, 2), ("b", 2, 3), ("a", 11, 4)])
SCRIPTS: dict[str, list[tuple[str, Any]]] = {
    "the order of the aggregates changes": [ONE, ("order", "thn"), ONE, ("advance", 10), ("crash", None), ONE],
    "windows become longer": [ONE, ("size", 20), ("send", [("a", 5, 1), ("a", 15, 1), ("b", 15, 1)]), ("crash", None)],
    "windows become shorter": [("size", 20), ONE, ("size", 10), ("send", [("a", 5, 1), ("a", 15, 1)]), ("crash", None)],
    "sums leave the machine's integers": [
        ("send", [("a", 1, 2**62), ("b", 1, 1)]),
        ("send", [("a", 2, 2**62)]),
        ("crash", None),
        ("send", [("a", 2, 2**62), ("b", 2, 1)]),
        ("send", [("a", 3, -(2**62))]),
    ],
    "a state has a sum that cannot be stored": [("send", [("a", 1, -(2**62))] * 3), ("crash", None), ONE],
    "a record fails amid others of its key": [
        ("send", [("a", 1, 2), ("a", 2, NOT_READ), ("a", 3, 5), ("b", 1, 2)]),
        ONE,
    ],
    "a record stops an iteration": [("send", [("a", 1, 2), ("b", 2, NONE_LEFT), ("c", 3, 5), ("a", 4, 1)]), ONE],
    "records come late": [ONE, ("advance", 12), ("send", [("a", 1, 1), ("a", 11, 7), ("b", 2, 9), ("b", 13, 1)])],
}


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("late", [None, "late"])
def test_columns_and_hooks_agree_in_these_cases(script: str, late: str | None) -> None:
    options: dict[str, Any] = {"late": late, "on_failure": mw.dead_letter(after=1)}
    assert run(SCRIPTS[script], COLUMNS, **options) == run(SCRIPTS[script], HOOKS, **options)


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("times", [(11, 13), (13, 11), (12, 13), (11, 25), (13, 14)])
def test_late_records_of_an_open_window_are_dropped_alike(times: tuple[int, int], tables: bool) -> None:
    late: list[tuple[str, Any]] = [ONE, ("advance", 12), ("send", [("a", times[0], 7), ("b", times[1], 1)])]
    assert run(late, COLUMNS, tables, drops=True) == run(late, HOOKS, drops=True)


class Measured(msgspec.Struct):
    key: str
    value: float


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize(
    "values", [[0.1, 0.2, 0.3, 0.1], [1, 0.5, True], [0.0, -0.0], [-0.0, 0.0], [1e308, 1e308, -1e308]]
)
def test_floats_are_added_and_compared_as_in_hooks(values: list[Any]) -> None:
    """Their order counts. Other numbers that a codec lets pass are those of the hook, too."""

    def measured(settings: IntervalSettings) -> list[str]:
        topology = mw.Topology("measured")
        made = topology.source("values", Measured).map(lambda one: Measured(one.key, values[int(one.value)]), Measured)
        aggregates = {
            "total": agg.sum("value"),
            "least": agg.min("value"),
            "most": agg.max("value"),
            "m": agg.mean("value"),
        }
        windowed: Any = made.key_by("key").window(windows.tumbling(mw.seconds(10)))
        windowed.aggregate("found", **aggregates)
        with TopologyHarness(topology, now=mw.Timestamp(NOON), settings=settings) as harness:
            for number in range(len(values)):
                harness.send("values", Measured("a", float(number)), mw.Timestamp(NOON + number))
            harness.finish()
            return [repr(one) for one in harness.values("found")]

    assert measured(COLUMNS) == measured(HOOKS)


@pytest.mark.guarantee("G12", section="7.1")
def test_the_parts_of_a_split_interval_have_their_own_panes() -> None:
    with TopologyHarness(totals(), split_at=["b"], now=mw.Timestamp(NOON), settings=COLUMNS) as harness:
        for at in (1, 11):
            batch = [(Bid(key, 1), mw.Timestamp(NOON + at * SECOND)) for key in "abc"]
            harness.send_all("bids", batch)
            harness.crash()
        assert {
            key: len(harness.state("totals", key)) for key in "abcd" if harness.state("totals", key)
        } == dict.fromkeys("abc", 2)
        assert len(harness.timers("totals", "a")) == 2
        harness.finish()
        assert len(harness.values("totals")) == 6
