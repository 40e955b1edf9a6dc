"""The options and schemas that the sink accepts, and its errors for others. Pure."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import types as spark

from millwheel.injectors.spark.errors import ColumnError, OptionError
from millwheel.injectors.spark.options import SinkOptions, parse_duration, parse_options
from millwheel.injectors.spark.schema import check_schema
from millwheel.injectors.spark.source import MillwheelDataSource

LEAST = {"stream": "flights", "id_column": "id", "timestamp_column": "at"}
UNITS = ("microseconds", "milliseconds", "seconds", "minutes", "hours", "days", "weeks")


@given(st.dictionaries(st.sampled_from(UNITS), st.integers(0, 1_000), min_size=1), st.booleans())
def test_durations_are_what_timedelta_takes_them_for(parts: dict[str, int], singular: bool) -> None:
    text = " ".join(f"{count} {unit.removesuffix('s') if singular else unit}" for unit, count in parts.items())
    assert parse_duration(text) == timedelta(**parts) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    "text", ["", "22", "hours", "-1 hours", "22 horas", "1 hour ago", "1 second,", "9e9 days", "٣ x"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it takes a duration such as '22 hours'"):
        parse_duration(text)


def test_fractions_of_a_duration_count() -> None:
    assert parse_duration(" 1.5 Hours 2ms".replace("ms", " milliseconds")) == 5_400_002_000


@given(
    st.fixed_dictionaries(
        {name: st.just(value) for name, value in LEAST.items()},
        optional={
            "address": st.sampled_from(["localhost:1", "[::1]:7433", "a:1,b:2"]),
            "watermark_column": st.just("known"),
            "allowed_delay": st.just("2 seconds"),
            "process": st.just("p"),
            "query": st.just("q/1"),
            "batch": st.integers(0, 10**18 - 1).map(str),
            "end_of_input": st.sampled_from(["true", "FALSE"]),
            "patience": st.just("1 minute"),
            "checkpointLocation": st.just("/c"),
        },
    )
)
def test_options_are_accepted_in_any_case(options: dict[str, str]) -> None:
    parsed = parse_options({name.upper(): value for name, value in options.items()})
    assert (parsed.stream, parsed.id_column, parsed.timestamp_column) == ("flights", "id", "at")
    assert parsed.allowed_delay == (2_000_000 if "allowed_delay" in options else 0)
    assert parsed.batch == int(options.get("batch", 0))
    assert parsed.end_of_input is (options.get("end_of_input") == "true")
    assert parsed.patience == 60.0
    assert parsed.watermark_source == options.get("watermark_column", "at")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"streem": "x"}, r"option 'streem' .*is unknown \(did you mean 'stream'\?\): it takes address, stream, "),
        ({"stream": "a/b/c"}, r"option 'stream' .*is 'a/b/c': it takes STREAM or TOPOLOGY/STREAM"),
        ({"process": "a/b"}, r"option 'process' .*is 'a/b': it takes a name without a slash"),
        ({"address": "localhost"}, r"option 'address' .*it takes host:port, such as 127.0.0.1:7433"),
        ({"address": "localhost:70000"}, r"option 'address' .*it takes host:port"),
        ({"allowed_delay": "1 fortnight"}, r"option 'allowed_delay' .*'1 fortnight': it takes a duration .*weeks\)"),
        ({"end_of_input": "yes"}, r"option 'end_of_input' .*it takes true or false"),
        ({"batch": "-1"}, r"option 'batch' .*it takes the number of a batch: 0, 1, 2"),
        ({"id_column": ""}, r"option 'id_column' .*it takes the name of a column"),
        ({"path": "/x"}, r"option 'path' .*is unknown"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        parse_options({**LEAST, **change})


@pytest.mark.parametrize("name", sorted(LEAST))
def test_a_missing_option_is_named_with_its_meaning(name: str) -> None:
    with pytest.raises(OptionError, match=rf"option '{name}' .*is missing: the (stream|column) "):
        parse_options({one: value for one, value in LEAST.items() if one != name})


@pytest.mark.parametrize("name", ["query", "batch", "end_of_input"])
def test_options_of_batch_writes_are_refused_on_a_stream(name: str) -> None:
    values = {"query": "q", "batch": "3", "end_of_input": "true"}
    source = MillwheelDataSource({**LEAST, name: values[name]})
    with pytest.raises(OptionError, match=rf"option '{name}' .*is for batch writes"):
        source.streamWriter(schema(), overwrite=False)


OPTIONS = parse_options({**LEAST, "watermark_column": "known"})
TEXT, TIME, LONG, DOUBLE, MONTHS = (
    spark.StringType(), spark.TimestampType(), spark.LongType(), spark.DoubleType(), spark.YearMonthIntervalType()
)  # fmt: skip


def schema(**columns: spark.DataType | None) -> spark.StructType:
    """Columns that the sink takes, with some changed, added, or (None) left out."""
    found: dict[str, spark.DataType | None] = {"id": TEXT, "at": TIME, "known": LONG, **columns}
    return spark.StructType([spark.StructField(name, kind) for name, kind in found.items() if kind is not None])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "option 'id_column': there is no column 'id'.*the columns are at, known"),
        ({"id": DOUBLE}, "option 'id_column': column 'id' is double, and an id is a string"),
        ({"at": TEXT}, "option 'timestamp_column': column 'at' is string, and a time is"),
        ({"known": DOUBLE}, "option 'watermark_column': column 'known' is double"),
        ({"d": spark.VariantType()}, r"column 'd' is variant, which a record cannot hold: write to_json"),
        ({"d": spark.YearMonthIntervalType()}, "column 'd' is interval year to month, .*: months have no length"),
        ({"d": spark.StructType().add("a", spark.ArrayType(MONTHS))}, r"column 'd.a\[\]' is interval year to month"),
        ({"d": spark.MapType(DOUBLE, TEXT)}, r"column 'd' is map<double,string>: the keys of a map"),
        ({"d": spark.MapType(TEXT, MONTHS)}, r"column 'd\[\]' is interval year to month, which"),
        ({"at": spark.TimestampNTZType()}, "option 'timestamp_column': column 'at' is timestamp_ntz, and a time is"),
    ],
)
def test_a_column_that_no_record_can_hold_is_named(change: dict[str, spark.DataType | None], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        check_schema(schema(**change), OPTIONS)


def test_columns_that_records_can_hold_are_taken() -> None:
    nested = spark.ArrayType(spark.StructType().add("t", TIME))
    flags = {"a": spark.BooleanType(), "b": spark.ByteType(), "c": DOUBLE, "d": spark.BinaryType()}
    check_schema(schema(**flags, e=nested, f=spark.MapType(TEXT, spark.FloatType()), g=spark.VarcharType(5)), OPTIONS)
    days = spark.MapType(spark.DateType(), spark.DecimalType(38, 18))
    check_schema(schema(a=days, b=spark.TimestampNTZType(), c=spark.DayTimeIntervalType(), d=spark.TimeType()), OPTIONS)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ColumnError, match="more than one column 'at'"):
        check_schema(spark.StructType([*schema().fields, spark.StructField("at", LONG)]), OPTIONS)


def test_the_batches_of_a_query_count_for_each_stream_apart() -> None:
    other = SinkOptions("weather", "id", "at")
    assert OPTIONS.scope("q") != other.scope("q")
