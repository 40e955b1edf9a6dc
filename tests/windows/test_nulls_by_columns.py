"""Columns with nulls, and keys that are integers, have the effects of records (sections 4.2, 5.2; G1)."""

from __future__ import annotations

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
from millwheel.worker.interval.receiver import IntervalReceiver
from tests.windows.test_by_column_fields import results
from tests.windows.test_by_columns import COLUMNS, HOOKS, NOON, as_table


class Trade(msgspec.Struct):
    auction: int
    price: int | None = None
    weight: float | None = None
    note: str | None = None


class Slim(msgspec.Struct):
    auction: int
    price: int | None
    weight: float | None
    half: float | None


PRICE, WEIGHT, NOTE = mw.col("price"), mw.col("weight"), mw.col("note")
PRICED, WEIGHED = PRICE != None, WEIGHT != None  # noqa: E711 - as a user writes it
AGGREGATES: dict[str, Any] = {
    "n": agg.count(),
    "priced": agg.count(where=PRICED),
    "total": agg.sum("price", where=PRICED),
    "dear": agg.sum("price", where=PRICED & (PRICE > 2)),
    "cheap": agg.count(where=~PRICED | (PRICE < 2)),
    "least": agg.min("weight"),
    "most": agg.max("price"),
    "most_weighed": agg.max("price", where=WEIGHED),
    "mean": agg.mean("weight", where=WEIGHED),
    "weights": agg.sum("weight", where=WEIGHED),
    "noted": agg.count(where=NOTE == "x"),
    "other": agg.count(where=NOTE != "x"),
    "alike": agg.count(where=PRICE == WEIGHT),
    "unlike": agg.count(where=PRICE != WEIGHT),
    "some": agg.count(where=PRICE.is_in([1, 2])),
    "noted_so": agg.count(where=NOTE.is_in(["x", "z"])),
    "ordered": agg.count(where=WEIGHT > 0.5),
    "loose": agg.sum("price", where=NOTE != "x"),
}
"""The last two fail for a None, as hooks do."""
FILTERS: dict[str, tuple[Any, ...]] = {
    "": (),
    "priced": (PRICED,),
    "dear": (PRICED & (PRICE > 1),),
    "price": (PRICE,),
    "light": (WEIGHT < 0.5,),
    "noted": (NOTE == "x", PRICED),
    "either": ((NOTE == "x") | (PRICE > 1),),
    "twice": (PRICE * 2 > -9,),
}


def program(before: str, chosen: list[str], selected: bool) -> mw.Topology:
    topology = mw.Topology("totals")
    trades: Any = topology.source("bids", Trade)
    for condition in FILTERS[before]:
        trades = trades.filter(condition)
    if selected:
        trades = trades.filter(WEIGHED).select(Slim, half=WEIGHT / 2)
    windowed = trades.key_by("auction").window(windows.tumbling(mw.seconds(10)))
    options: dict[str, Any] = {"on_failure": mw.dead_letter(after=1)}
    windowed.aggregate("totals", **{name: AGGREGATES[name] for name in chosen}, too_late="late", options=options)
    return topology


def maybe(some: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), some)


prices = st.one_of(st.integers(-2, 3), st.sampled_from([2**62, -(2**63), 2**63 - 1]))
trades = st.tuples(
    st.sampled_from([7, -30, 2**63 - 1]),
    st.integers(0, 25),
    maybe(prices),
    maybe(st.sampled_from([0.0, -0.0, 0.25, 1.0, 3.0])),
    maybe(st.sampled_from(["x", "y", ""])),
)
send = st.tuples(st.just("send"), st.lists(trades, min_size=1, max_size=8))
advance = st.tuples(st.just("advance"), st.integers(0, 30))
actions = st.lists(st.one_of(send, send, advance, st.just(("crash", None))), min_size=1, max_size=8)
limits = st.builds(
    replace, st.just(COLUMNS), columns_from=st.integers(1, 3), batch_records=st.sampled_from([1, 3, 8_192])
)
unselected = [name for name, one in AGGREGATES.items() if name not in ("noted", "other", "noted_so", "loose")]
"""Those that read no field which ``select`` leaves out."""

ONE_OF_EACH = [
    ("send", [(7, 1, None, 0.25, "x"), (7, 2, 3, None, None), (-30, 2, None, None, None), (7, 3, 1, 1.0, "y")]),
    ("send", [(-30, 3, 2, 3.0, ""), (7, 4, None, 0.0, None), (-30, 5, 0, None, "x")]),
    ("send", [(7, 12, None, None, None), (-30, 13, 0, 0.0, "")]),
]


@pytest.mark.guarantee("G1", section="4.2")
@settings(max_examples=150)
@given(
    actions,
    limits,
    st.sampled_from([*FILTERS]),
    st.booleans().flatmap(
        lambda selected: st.tuples(
            st.lists(st.sampled_from(unselected if selected else [*AGGREGATES]), min_size=1, max_size=4, unique=True),
            st.just(selected),
        )
    ),
)
@example(ONE_OF_EACH, COLUMNS, "", (["n", "total", "least", "most", "mean"], False))
@example(ONE_OF_EACH, COLUMNS, "", (["priced", "dear", "cheap", "alike", "unlike", "some"], False))
@example(ONE_OF_EACH, COLUMNS, "", (["noted", "other", "noted_so", "weights", "most_weighed"], False))
@example(ONE_OF_EACH, COLUMNS, "", (["ordered"], False))
@example(ONE_OF_EACH, COLUMNS, "", (["n", "loose"], False))
@example(ONE_OF_EACH, COLUMNS, "either", (["n"], False))
@example(ONE_OF_EACH, COLUMNS, "price", (["n", "total"], True))
@example(ONE_OF_EACH, COLUMNS, "twice", (["n"], False))
def test_columns_with_nulls_have_the_effects_of_records(
    actions: list[Any], limits: Any, before: str, chosen: tuple[list[str], bool]
) -> None:
    hooks = replace(HOOKS, batch_records=limits.batch_records)
    expected = results(program(before, *chosen), actions, hooks, False, Trade)
    assert results(program(before, *chosen), actions, limits, True, Trade) == expected


@pytest.mark.parametrize("before", ["", "priced", "dear", "price", "noted"])
@pytest.mark.parametrize("selected", [False, True])
def test_columns_with_nulls_need_no_values(before: str, selected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    read = RecordColumns.__getitem__

    def counted(records: RecordColumns, index: Any) -> Any:
        made.append(index)
        return read(records, index)

    def delivered(receiver: IntervalReceiver, delivery: Any) -> Any:
        found = as_table(receiver, delivery)
        made.clear()  # it has compared the values
        return found

    monkeypatch.setattr(RecordColumns, "__getitem__", counted)
    monkeypatch.setattr(IntervalReceiver, "deliver", delivered)
    chosen = ["n", "priced", "total", "dear", "cheap", "least", "most", "most_weighed", "mean", "alike", "some"]
    with TopologyHarness(program(before, chosen, selected), now=mw.Timestamp(NOON), settings=COLUMNS) as harness:
        rows = [Trade(7, None, 0.25, "x"), Trade(7, 3, None, None), Trade(-30, 2, 1.0, "x"), Trade(7, None, None, "y")]
        harness.send_all("bids", [(row, mw.Timestamp(NOON)) for row in rows])
        harness.finish()
        assert {one.auction for one in harness.values("totals")} <= {"7", "-30", 7, -30}
        assert harness.values("totals")
    assert not made


class Priced(msgspec.Struct):
    auction: int
    price: int
    weight: float | None = None


@pytest.mark.guarantee("G1", section="4.2")
def test_a_null_in_a_field_that_is_never_none_fails_alone() -> None:
    """A sender that checks no types may send it. The record cannot be decoded, by columns or not."""
    topology = mw.Topology("totals")
    windowed: Any = topology.source("bids", Priced).key_by("auction").window(windows.tumbling(mw.seconds(10)))
    options: dict[str, Any] = {"on_failure": mw.dead_letter(after=1)}
    windowed.aggregate("totals", n=agg.count(where=~WEIGHED), options=options)
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(IntervalReceiver, "deliver", with_a_null)
        with TopologyHarness(topology, now=mw.Timestamp(NOON), settings=COLUMNS) as harness:
            harness.send_all("bids", [(Priced(7, price), mw.Timestamp(NOON)) for price in (1, 0, 2)])
            harness.finish()
            assert [one.n for one in harness.values("totals")] == [2]
            assert harness.counts("totals")["dead_letters"] == 1


def with_a_null(receiver: IntervalReceiver, delivery: Any) -> Any:
    """Deliver bids as columns. A price of 0 is a null."""
    if delivery.stream == "bids":
        values = [msgspec.msgpack.decode(value) for value in delivery.values]
        delivery.values = [msgspec.msgpack.encode(value | {"price": value["price"] or None}) for value in values]
    return as_table(receiver, delivery)
