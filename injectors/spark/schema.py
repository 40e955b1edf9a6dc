"""Checks the schema of a DataFrame before any row is read: column names and types. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyspark.sql import types as spark

from millwheel.injectors.spark.errors import ColumnError, listed
from millwheel.injectors.spark.options import SinkOptions
from millwheel.sdk.errors import did_you_mean

__all__ = ["check_schema"]

_WHOLE: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
_PLAIN: Final = (
    *_WHOLE,
    spark.BooleanType,
    spark.FloatType,
    spark.DoubleType,
    spark.StringType,
    spark.CharType,
    spark.VarcharType,
    spark.BinaryType,
    spark.TimestampType,
    spark.TimestampNTZType,
    spark.DateType,
    spark.TimeType,
    spark.DecimalType,
    spark.DayTimeIntervalType,
    spark.NullType,
)
_KEYS: Final = (
    *_WHOLE,
    spark.BooleanType,
    spark.StringType,
    spark.CharType,
    spark.VarcharType,
    spark.BinaryType,
    spark.TimestampType,
    spark.DateType,
    spark.DecimalType,
)
"""The types of a map's keys."""
_REMEDIES: Final[tuple[tuple[type[spark.DataType], str], ...]] = (
    (spark.VariantType, "write to_json(column)"),
    (spark.YearMonthIntervalType, "months have no length: cast it to string, or to a number of months"),
)


def check_schema(schema: spark.StructType, options: SinkOptions) -> None:
    """Raise ColumnError for a column that is missing or cannot be in a record. It names the column and a remedy."""
    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ColumnError(f"stream {options.stream!r}: there is more than one column {listed(map(repr, twice))}")
    roles = [("id_column", options.id_column), ("timestamp_column", options.timestamp_column)]
    if options.watermark_column is not None:
        roles.append(("watermark_column", options.watermark_column))
    for role, name in roles:
        if name not in names:
            hint = did_you_mean(name, names)
            raise ColumnError(f"option {role!r}: there is no column {name!r}{hint}; the columns are {listed(names)}")
        kind = schema[name].dataType
        if role == "id_column" and not isinstance(
            kind, (*_WHOLE, spark.StringType, spark.CharType, spark.VarcharType, spark.BinaryType)
        ):
            raise ColumnError(
                f"option {role!r}: column {name!r} is {kind.simpleString()}, and an id is a string, a whole number "
                "or binary"
            )
        if role != "id_column" and not isinstance(kind, (spark.TimestampType, spark.LongType)):
            raise ColumnError(
                f"option {role!r}: column {name!r} is {kind.simpleString()}, and a time is a timestamp, or a bigint "
                "of microseconds since 1970"
            )
    for field in schema.fields:
        for where, why in _problems(field.name, field.dataType):
            raise ColumnError(f"stream {options.stream!r}: column {where!r} {why}")


def _problems(where: str, kind: spark.DataType) -> Iterator[tuple[str, str]]:
    """The parts of a column's type that a record cannot hold, and why."""
    if isinstance(kind, spark.StructType):
        for field in kind.fields:
            yield from _problems(f"{where}.{field.name}", field.dataType)
    elif isinstance(kind, spark.ArrayType):
        yield from _problems(f"{where}[]", kind.elementType)
    elif isinstance(kind, spark.MapType):
        if not isinstance(kind.keyType, _KEYS):
            yield (
                where,
                (
                    f"is {kind.simpleString()}: the keys of a map in a record are strings, whole numbers, decimals, "
                    "booleans, binary, dates or timestamps; cast them"
                ),
            )
        yield from _problems(f"{where}[]", kind.valueType)
    elif not isinstance(kind, _PLAIN):
        remedy = next((text for one, text in _REMEDIES if isinstance(kind, one)), "cast it, or leave it out")
        yield where, f"is {kind.simpleString()}, which a record cannot hold: {remedy}"
