"""Aggregates that read fields from columns of Arrow come to what hooks come to (sections 4.2, 4.6; G1)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.rpc.columns import RecordColumns
from millwheel.testing import TopologyHarness
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.receiver import IntervalReceiver
from tests.windows.test_by_columns import COLUMNS, HOOKS, NOON, SECOND, as_table


class Bid(msgspec.Struct, rename={"price": "cents"}):
    auction: str
    price: int
    weight: float
    note: str = ""


AGGREGATES: dict[str, Any] = {
    "number": agg.count(),
    "total": agg.sum("price"),
    "highest": agg.max("price"),
    "least": agg.min("weight"),
    "weight": agg.sum("weight"),
    "mean": agg.mean("weight"),
    "mean price": agg.mean("price"),
    "dear": agg.count(where=(mw.col("price") > 2.5) & (mw.col("note") == "")),
    "worth": agg.sum(mw.col("price") * mw.col("weight"), where=mw.col("auction").is_in(["a", "b"])),
    "share": agg.mean(1 / mw.col("price")),
    "more": agg.max(mw.col("price") * 2 - 1, where=~(mw.col("weight") < 0.2)),
    "other": agg.sum(lambda bid: bid.price),
    "long": agg.count(where=lambda bid: len(bid.note) > 1),
}
READ = [*AGGREGATES][:-2]
"""Those that call no function."""
FILTERS: dict[str, tuple[Any, ...]] = {
    "dear": (mw.col("price") >= 0,),
    "light": (mw.col("weight") < 0.2, mw.col("price") * 2 != 2, mw.col("note") == ""),
    "guarded": ((mw.col("price") != 0) & (6 / mw.col("price") > 1),),
    "failing": (6 / mw.col("price") > mw.col("weight"),),
    "number": (mw.col("price"), mw.col("weight") - 0.1),
    "text": (mw.col("note"),),
    "none": (mw.col("auction") == "z",),
}
"""Filters by expressions before the windows."""


def program(before: str, chosen: list[str], late: bool) -> mw.Topology:
    """``before``: what is between the source and the windows."""
    topology = mw.Topology("totals")
    bids: Any = topology.source("bids", Bid)
    for condition in FILTERS.get(before, ()):
        bids = bids.filter(condition)
    if before == "filter":
        bids = bids.filter(lambda bid: bid.price >= 0)
    elif before == "map":
        bids = bids.map(lambda bid: msgspec.structs.replace(bid, weight=bid.weight + 1), Bid)
    windowed = bids.key_by("auction").window(windows.tumbling(mw.seconds(10)))
    aggregates = {name.replace(" ", "_"): AGGREGATES[name] for name in chosen}
    options: dict[str, Any] = {"on_failure": mw.dead_letter(after=1)} | ({"late": mw.Late.DROP} if late else {})
    windowed.aggregate("totals", **aggregates, too_late="late", options=options)
    return topology


Sent = tuple[str, int, int, float, str]

bids = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 40),
    st.one_of(st.integers(-5, 5), st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63), 2**53 + 1])),
    st.one_of(st.floats(), st.sampled_from([0.1, 0.2, 0.3, 0.0, -0.0, 1e308, -1e308])),
    st.sampled_from(["", "note"]),
)
send = st.tuples(st.just("send"), st.lists(bids, min_size=1, max_size=8))
advance = st.tuples(st.just("advance"), st.integers(0, 45))
actions = st.lists(st.one_of(send, send, advance, st.just(("crash", None))), max_size=10)
limits = st.builds(
    replace,
    st.just(COLUMNS),
    columns_from=st.integers(1, 3),
    batch_records=st.sampled_from([1, 3, 8_192]),
    checkpoint_entries=st.sampled_from([1, 20]),
)
several = st.lists(st.sampled_from(READ), min_size=1, max_size=4, unique=True)
any_of_them = st.one_of(several, several, st.lists(st.sampled_from([*AGGREGATES]), min_size=1, max_size=3, unique=True))


BEYOND_AND_BACK = [("send", [("a", 1, -(2**63), 0.5, ""), ("a", 2, -1, 0.5, ""), ("a", 3, 5, 0.5, "")])]
BESIDE_A_DROPPED_ONE = [("send", [("a", 1, 0, 0.5, ""), ("a", 2, -1, 0.5, ""), ("a", 3, 5, 0.5, "")])]
BESIDE_A_LATE_ONE = [
    ("send", [("a", 1, 3, 0.5, "")]),
    ("advance", 15),
    ("send", [("a", 1, 5, 0.25, ""), ("b", 20, 7, -0.0, ""), ("a", 16, 9, 0.1, "")]),
]


def results(
    topology: mw.Topology,
    actions: list[tuple[str, Any]],
    limits: IntervalSettings,
    tables: bool,
    make: Callable[..., Any] = Bid,
) -> Any:
    """All that the topology does. Results of windows that end together have no order. ``make``: the records."""
    with pytest.MonkeyPatch.context() as patches:
        if tables:
            patches.setattr(IntervalReceiver, "deliver", as_table)
        with TopologyHarness(topology, now=mw.Timestamp(NOON), settings=limits) as harness:
            watermark = 0
            for kind, what in [*actions, ("finish", None)]:
                with suppress(ValueError, mw.ValueEncodeError):  # a result beyond 64 bits
                    if kind == "send":
                        harness.send_all(
                            "bids",
                            [(make(key, *rest), mw.Timestamp(NOON + at * SECOND)) for key, at, *rest in what],
                        )
                    elif kind == "advance":
                        watermark = max(watermark, what)
                        harness.advance(mw.Timestamp(NOON + watermark * SECOND))
                    else:
                        getattr(harness, kind)()
            counts = dict(harness.counts("totals"))
            del counts["duplicates"]  # a crash may lose what was counted since the last checkpoint
            made = {
                stream: sorted(repr((one.value, one.timestamp)) for one in harness.produced(stream))
                for stream in ("totals", "late")
            }
            return made, counts, harness.watermark("totals")


@pytest.mark.guarantee("G1", section="4.2")
@settings(max_examples=150)
@given(actions, limits, st.sampled_from(["", "filter", "map", *FILTERS]), any_of_them, st.booleans())
@example(BESIDE_A_LATE_ONE, COLUMNS, "", ["total", "weight"], False)
@example(BESIDE_A_LATE_ONE, COLUMNS, "", ["total", "weight"], True)
@example(BESIDE_A_LATE_ONE, COLUMNS, "", ["dear", "worth", "more"], False)
@example(BESIDE_A_DROPPED_ONE, COLUMNS, "filter", ["share"], False)
@example(BESIDE_A_DROPPED_ONE, COLUMNS, "guarded", ["share"], False)
@example(BESIDE_A_DROPPED_ONE, COLUMNS, "failing", ["share"], False)
@example(BESIDE_A_LATE_ONE, COLUMNS, "light", ["number", "weight"], True)
@example(BESIDE_A_LATE_ONE, COLUMNS, "none", ["number"], False)
@example(BEYOND_AND_BACK, replace(COLUMNS, batch_records=1), "", ["total", "mean price"], False)
def test_fields_of_columns_have_the_effects_of_records(
    actions: list[Any], limits: IntervalSettings, before: str, chosen: list[str], late: bool
) -> None:
    # A state is encoded at each commit: a sum that leaves 64 bits and comes back fails where a batch ends between.
    hooks = replace(HOOKS, batch_records=limits.batch_records)
    expected = results(program(before, chosen, late), actions, hooks, False)
    assert results(program(before, chosen, late), actions, limits, True) == expected


@pytest.mark.parametrize("before", ["", "filter", "map", "dear", "light", "guarded", "number", "none"])
@pytest.mark.parametrize("other", ["", "other", "long"])
def test_values_are_made_where_only_they_say_it(before: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field or an expression makes none. A function, before the windows or in an aggregate, needs each of them."""
    made: list[int] = []
    read = RecordColumns.__getitem__

    def counted(records: RecordColumns, index: Any) -> Any:
        made.append(index)
        return read(records, index)

    def delivered(receiver: IntervalReceiver, delivery: Any) -> Any:
        found = as_table(receiver, delivery)
        if isinstance(delivery.values, RecordColumns):
            made.clear()  # it has compared the values
        return found

    monkeypatch.setattr(RecordColumns, "__getitem__", counted)
    monkeypatch.setattr(IntervalReceiver, "deliver", delivered)
    chosen = ["number", "total", "mean", "highest", "dear", "worth", "share", "more", *([other] if other else [])]
    with TopologyHarness(program(before, chosen, False), now=mw.Timestamp(NOON), settings=COLUMNS) as harness:
        batch = [(Bid(key, 3, 0.5), mw.Timestamp(NOON + at * SECOND)) for at, key in enumerate("abcabcaabbccabc")]
        harness.send_all("bids", batch)
        harness.finish()
        passed = 0 if before in ("none", "light") else len(batch)
        assert sum(one.number for one in harness.values("totals")) == passed
    assert bool(made) == (before in ("filter", "map") or other != "")


@pytest.mark.guarantee("G1", section="4.2")
def test_a_codec_of_the_user_decides_what_a_field_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(encoded: bytes) -> Bid:
        bid = msgspec.msgpack.decode(encoded, type=Bid)
        return msgspec.structs.replace(bid, price=2 * bid.price)

    topology = mw.Topology("totals")
    bids = topology.source("bids", Bid, codec=mw.Codec(msgspec.msgpack.encode, doubled))
    bids.key_by("auction").window(windows.tumbling(mw.seconds(10))).aggregate("totals", total=agg.sum("price"))
    monkeypatch.setattr(IntervalReceiver, "deliver", as_table)
    with TopologyHarness(topology, now=mw.Timestamp(NOON), settings=COLUMNS) as harness:
        harness.send_all("bids", [(Bid(key, 3, 0.5), mw.Timestamp(NOON)) for key in "abab"])
        harness.finish()
        assert [one.total for one in harness.values("totals")] == [12, 12]


@pytest.mark.guarantee("G1", section="4.2")
def test_a_filter_that_stops_an_iteration_fails_for_its_record() -> None:
    def made(limits: IntervalSettings) -> Any:
        topology = mw.Topology("totals")
        bids = topology.source("bids", Bid).filter(lambda bid: next(iter([True] if bid.price else [])))
        windowed = bids.key_by("auction").window(windows.tumbling(mw.seconds(10)))
        windowed.aggregate("totals", n=agg.count(), too_late="late", options={"on_failure": mw.dead_letter(after=1)})
        return results(topology, [("send", [("a", at, int(at != 2), 0.5, "") for at in range(5)])], limits, False)

    assert made(COLUMNS) == made(HOOKS)
