"""What of a computation's work may be done by columns, and why not (sections 4.2, 5.2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.cli.column_use import print_columns
from millwheel.connectors import Sink, SinkWriter, read_files, write_files
from millwheel.sdk.column_plan import column_plan
from millwheel.sdk.compiled import compile_computation
from millwheel.sdk.spec import build_spec

MINUTE = mw.minutes(1)
TUMBLING = windows.tumbling(MINUTE)
SLIDING = windows.sliding(mw.minutes(2), every=MINUTE)


class Sale(msgspec.Struct):
    shop: str
    item: str
    price: int
    size: int | None = None


class Income(msgspec.Struct):
    shop: str
    euros: float
    rank: int = 1


class Drawn(msgspec.Struct):
    shop: str
    rank: int = msgspec.field(default_factory=int)


class Tagged(msgspec.Struct, tag=True):
    shop: str


class Flat(msgspec.Struct):
    shop: str
    sale: dict[str, str] = {}


class Nested(msgspec.Struct):
    shop: str
    sale: Sale


Build = Callable[[Any], Any]


def counted(stream: Any, *key: Any, **aggregates: Any) -> None:
    keyed = stream.key_by(*(key or ("shop",)))
    keyed.window(TUMBLING).aggregate("out", **(aggregates or {"n": agg.count()}))


BY_COLUMNS: dict[str, Build] = {
    "no filter": counted,
    "an expression": lambda sales: counted(sales.filter(mw.col("price") > 5).filter(mw.col("item") != None)),  # noqa: E711
    "one that may be None": lambda sales: counted(sales.filter(mw.col("size") > 5)),
    "a selection": lambda sales: counted(sales.select(Income, euros=mw.col("price") / 100).filter(mw.col("euros") > 1)),
    "a key of a number": lambda sales: counted(sales, "price"),
    "numbers that may be None": lambda sales: counted(
        sales,
        least=agg.min("size"),
        sizes=agg.sum("size", where=mw.col("size") != None),  # noqa: E711
        mean=agg.mean("size", where=mw.col("size") > 2),
    ),
    "aggregates": lambda sales: counted(sales, n=agg.sum("price"), m=agg.mean(mw.col("price") / 2)),
}
BY_VALUES: dict[str, tuple[Build, str]] = {
    "a function": (lambda sales: counted(sales.filter(lambda sale: sale.price > 5)), "a function before it"),
    "a map": (lambda sales: counted(sales.map(lambda sale: sale, Sale)), "its key is computed by code"),
    "a selection of an integer": (
        lambda sales: counted(sales.select(Income, euros=mw.col("price") * 2)),
        "the field 'euros' of Income is no plain int, as col('price') * 2 is",
    ),
    "a default": (
        lambda sales: counted(sales.select(Income, euros=mw.col("price") / 2), n=agg.sum("rank")),
        "reads the field 'rank', which select leaves at its default",
    ),
    "another type": (
        lambda sales: counted(sales.select(Income, euros=mw.col("price") / 2), n=agg.sum("euros", int)),
        "the field 'euros' of select is float, and an aggregate wants int",
    ),
    "a default of a function": (
        lambda sales: counted(sales.select(Drawn)),
        "a function of Drawn makes the field 'rank', which select leaves out",
    ),
    "a text": (lambda sales: counted(sales.filter(mw.col("item"))), "its filter col('item') is not"),
    "a key of two fields": (lambda sales: counted(sales, "shop", "item"), "its key is no single field"),
    "a function's aggregate": (
        lambda sales: counted(sales, n=agg.count(), dear=agg.count(where=lambda sale: sale.price > 1)),
        "an aggregate calls a function, or reads what is no plain field: 'dear'",
    ),
}
BY_HOOKS: dict[str, tuple[Build, str]] = {
    "no windows": (lambda sales: sales.key_by("shop").latest("out"), "no tumbling windows of aggregates"),
    "sliding windows": (
        lambda sales: sales.key_by("shop").window(SLIDING).aggregate("out", n=agg.count()),
        "not tumbling, or have a time zone",
    ),
    "another aggregate": (
        lambda sales: counted(sales, n=agg.count(), best=agg.top(3, "price"), d=agg.distinct("item")),
        "an aggregate has no columns, or is of no int or float: 'best', 'd'",
    ),
    "early results": (
        lambda sales: sales.key_by("shop").window(TUMBLING).aggregate("out", agg.count(), early=windows.each_change()),
        "early= or allowed_lateness= needs each record",
    ),
    "weak productions": (
        lambda sales: sales.key_by("shop").window(TUMBLING).aggregate("out", n=agg.count(), options={"strong": False}),
        "its productions are weak",
    ),
    "two readings": (
        lambda sales: counted(sales.filter(mw.col("price") > 5).union(sales.filter(mw.col("price") < 2))),
        "it reads the stream 'sales' in several ways",
    ),
}


def topology(build: Build, record_type: Any = Sale) -> mw.Topology:
    shop = mw.Topology("shop")
    build(shop.source("sales", record_type))
    assert not shop.validate()
    return shop


def reasons(shop: mw.Topology, name: str = "out") -> tuple[str, dict[str, str]]:
    plan = shop.plan()
    declared = plan.computations[name]
    by_hooks, by_values = column_plan(declared, [*declared.inputs], plan)
    return by_hooks, dict(by_values)


@pytest.mark.parametrize("case", BY_COLUMNS)
def test_these_programs_work_by_columns(case: str) -> None:
    shop = topology(BY_COLUMNS[case])
    assert reasons(shop) == ("", {"sales": ""})
    assert [*compile_computation(shop, "out").column_readings] == ["sales"]


@pytest.mark.parametrize("case", BY_VALUES)
def test_these_programs_need_values(case: str) -> None:
    build, why = BY_VALUES[case]
    by_hooks, by_values = reasons(topology(build))
    assert by_hooks == ""
    assert why in by_values["sales"]


@pytest.mark.parametrize("case", BY_HOOKS)
def test_these_programs_need_hooks(case: str) -> None:
    build, why = BY_HOOKS[case]
    shop = topology(build)
    by_hooks, by_values = reasons(shop)
    assert why in by_hooks
    assert by_values == {}
    assert compile_computation(shop, "out").windows is None


def test_other_types_need_values() -> None:
    assert "Tagged is no plain struct" in reasons(topology(counted, Tagged))[1]["sales"]
    assert reasons(topology(counted, Nested))[1]["sales"] == (
        "the field 'sale' of its records is no plain text, number or truth value"
    )
    assert reasons(topology(counted, dict[str, Any]))[1]["sales"] == (
        "its stream's type dict[str, Any] is no plain struct"
    )


def test_an_aggregate_without_a_name_is_an_aggregate() -> None:
    shop = topology(lambda sales: sales.key_by("shop").window(TUMBLING).aggregate("out", agg.distinct("item")))
    assert reasons(shop)[0] == "an aggregate has no columns, or is of no int or float"


def test_a_reason_has_a_bound() -> None:
    many = mw.col("sale.item").is_in([f"item {number}" for number in range(1_000)])
    why = reasons(topology(lambda sales: counted(sales.filter(many)), Flat))[1]["sales"]
    assert why.startswith("its filter col('sale.item').is_in(['item 0', ")
    assert why.endswith("… is not of numbers, truth values and comparisons of texts alone")
    assert len(why) < 200
    named = msgspec.defstruct("S" * 1_000, [("shop", str)], tag=True)
    assert len(reasons(topology(counted, named))[1]["sales"]) <= 301


def test_records_of_a_computation_are_no_tables() -> None:
    shop = mw.Topology("shop")
    first = shop.source("sales", Sale).key_by("shop").window(TUMBLING).aggregate("first", n=agg.count())
    first.key_by("shop").window(TUMBLING).aggregate("second", n=agg.sum("n"))
    assert reasons(shop, "second")[1] == {"first": "its records come one by one from 'first'"}


@pytest.mark.parametrize("build", [build for build, _ in (BY_VALUES | BY_HOOKS).values()])
def test_no_reason_is_a_part_of_the_spec(build: Build) -> None:
    """Masters compare whole specs: a reason in other words would make an unchanged program another one."""
    shop = topology(build)
    by_hooks, by_values = reasons(shop)
    spec = build_spec(shop.plan())[0].SerializeToString()
    assert not [one for one in (by_hooks, *by_values.values()) if one and one.encode() in spec]


class Kept(Sink[Any], SinkWriter[Any]):
    async def open_writer(self, place: Any) -> SinkWriter[Any]:
        return self

    async def write(self, batch: Any) -> None:
        """Nothing."""


class Whole(msgspec.Struct, omit_defaults=True):
    shop: str
    item: str = ""


SINKS: dict[str, tuple[Build, str]] = {
    "as they are": (lambda sales: sales.to("kept", Kept()), ""),
    "expressions": (
        lambda sales: sales.filter(mw.col("price") > 5).select(Income, euros=mw.col("price") / 2, rank=mw.col("price")),
        "",
    ),
    "a filter that may raise": (lambda sales: sales.filter(mw.col("size") > 5), "its key is computed by code"),
    "a function": (lambda sales: sales.map(lambda sale: sale, Sale), "a function before it needs values"),
    "a default": (lambda sales: sales.select(Income, euros=mw.col("price") / 2), "reads the field 'rank'"),
    "defaults that are left out": (lambda sales: sales.select(Whole), "the type Whole leaves out defaults"),
    "two ways": (
        lambda sales: sales.filter(mw.col("price") > 5).union(sales),
        "it reads the stream 'sales' in several ways",
    ),
    "two keys": (
        lambda sales: sales.filter(mw.col("price") > 5).union(sales.filter(mw.col("price") < 2)),
        "its key is computed by code",
    ),
    "shards": (lambda sales: sales.to("kept", Kept(), shards=2), "its key is computed by code"),
}


@pytest.mark.parametrize("case", SINKS)
def test_sinks_take_tables_or_a_reason_says_why_not(case: str) -> None:
    build, why = SINKS[case]

    def with_sink(sales: Any) -> None:
        made = build(sales)
        if isinstance(made, mw.Stream):
            made.to("kept", Kept())

    by_hooks, by_values = reasons(topology(with_sink), "kept-batches")
    assert by_hooks
    assert why in by_values["sales"]
    assert bool(why) == bool(by_values["sales"])


class Mixed(msgspec.Struct):
    shop: str
    price: int | str = 0


def test_a_field_of_two_types_is_a_reason() -> None:
    shop = mw.Topology("shop")
    shop.source("sales", Mixed).to("kept", Kept())
    assert reasons(shop, "kept-batches")[1] == {
        "sales": "the field 'price' of its records is no plain text, number or truth value"
    }


def test_validate_prints_computations_with_windows(capsys: pytest.CaptureFixture[str]) -> None:
    print_columns(topology(BY_HOOKS["no windows"][0]).plan())
    assert capsys.readouterr().out == ""
    print_columns(topology(BY_HOOKS["sliding windows"][0]).plan())
    assert "no          its windows are not tumbling, or have a time zone" in capsys.readouterr().out
    print_columns(topology(BY_VALUES["a text"][0]).plan())
    assert "out          shop/sales  windows, and not tables  its filter col('item')" in capsys.readouterr().out


def of_parquet(folder: Path, build: Build, **options: Any) -> dict[str, str]:
    """Why the rows of files of Parquet become values."""
    shop = mw.Topology("shop")
    build(shop.source("sales", Sale, read_files(folder / "*.parquet", Sale), **{"timestamp": "price", **options}))
    assert not shop.validate()
    return reasons(shop)[1]


def counted_twice(stream: Any) -> None:
    counted(stream)
    stream.key_by(lambda sale: sale.item * 2).window(TUMBLING).aggregate("second", n=agg.count())


def counted_and_stored(stream: Any, kind: Any = Sale, shards: int = 1) -> None:
    counted(stream)
    stream.to("lake", write_files("/lake", kind, format="parquet"), shards=shards)


def counted_and_made(stream: Any) -> None:
    counted(stream)
    stream.map(lambda sale: sale.price, int).named("prices")


@pytest.mark.parametrize(
    ("build", "options", "why"),
    [
        (counted, {}, ""),
        (counted, {"timestamp": None}, ""),
        (counted, {"timestamp": lambda sale: sale.price}, "timestamp= is a function, and needs values: name a field"),
        (counted, {"timestamp": "shop"}, "the field 'shop' of timestamp= is no Timestamp and no int"),
        (counted_twice, {}, "its key is computed by code at 'second'"),
        (counted_and_stored, {}, ""),
        (lambda sales: counted_and_stored(sales.filter(mw.col("price") > 1)), {}, ""),
        (lambda sales: counted_and_stored(sales.select(Income, euros=mw.col("price") / 100), Income), {}, ""),
        (lambda sales: counted_and_stored(sales, shards=2), {}, "its key is computed by code at 'lake-batches'"),
        (counted_and_made, {}, "other streams are made of its records"),
    ],
)
def test_rows_of_files_stay_columns(tmp_path: Path, build: Build, options: dict[str, Any], why: str) -> None:
    expected = why and f"its records come one by one from 'sales-reader': {why}"
    assert of_parquet(tmp_path, build, **options) == {"sales": expected}


def test_files_of_lines_say_that_they_have_no_columns(tmp_path: Path) -> None:
    shop = mw.Topology("shop")
    counted(shop.source("sales", Sale, read_files(tmp_path / "*.jsonl", Sale), timestamp="price"))
    assert reasons(shop)[1]["sales"].endswith("'sales-reader': files of jsonl have no columns")
