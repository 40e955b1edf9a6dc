"""What of a computation's work a worker may do by columns, and why not the rest (sections 4.2, 5.2).

Two questions decide it. Can its windows be kept by columns, or does its hook take tables, as that of a sink? If so, and
a table comes: can its columns be read, or must a value be made for each row? Both are answered by declarations alone. A
worker may still need a hook for a record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from millwheel.model.wording import named
from millwheel.sdk.batches.column_records import whole_fields
from millwheel.sdk.batches.computation import BatchComputation
from millwheel.sdk.codecs import ValueFormat
from millwheel.sdk.column_fields import column_fields
from millwheel.sdk.column_reading import ColumnReading, steps_for
from millwheel.sdk.computation import Computation
from millwheel.sdk.declarations import UNKNOWN, ComputationDeclaration, Reading
from millwheel.sdk.exact_types import unless_none
from millwheel.sdk.field_paths import type_at
from millwheel.sdk.keys import KeyExtractor, key_source
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.plan import Plan, PlannedStream
from millwheel.sdk.typeinfo import supertype, type_name

__all__ = ["ColumnPlan", "column_plan", "column_reading", "why_hooks"]

_MAX_REASON: Final = 300
"""The most characters of a reason. Names of a user's types and fields may have any length."""


class ColumnPlan(NamedTuple):
    """Why a computation does not work by columns. An empty text: it may."""

    by_hooks: str
    """Why its records run in hooks, and not by columns. Empty: a worker may keep its windows by columns."""
    by_values: Mapping[str, str]
    """By input stream: why the rows of a table become values, one by one. Empty: its columns are read. There are none
    if its records run in hooks that take no tables."""


def column_plan(declared: ComputationDeclaration, inputs: Sequence[str], plan: Plan) -> ColumnPlan:
    """How a computation of a valid topology works.

    Args:
        declared: The computation.
        inputs: The streams that it reads, in the order of the result.
        plan: That of the topology.
    """
    streams = plan.streams
    made = declared.computation
    reason = "" if made is None else why_hooks(made, declared.options, declared.readings)
    windows = None if made is None or reason else made._by_columns()
    takes_tables = isinstance(made, BatchComputation) and made._takes_columns
    if windows is None and not takes_tables:
        return ColumnPlan(reason, {})
    found: dict[str, str] = {}
    for stream in inputs:
        readings = declared.readings.get(stream, ())
        reading = column_reading(streams[stream], readings)
        if isinstance(reading, str):
            why = reading
        elif windows is None:
            why = _why_no_table(streams[stream], readings, reading)
        else:
            wanted = windows.fold.fields
            why = windows.fold.why_values if wanted is None else reading.problem(wanted)
        why = _why_rows(streams[stream], declared.inputs[stream], plan) or why
        found[stream] = why if len(why) <= _MAX_REASON else f"{why[:_MAX_REASON]}…"
    return ColumnPlan(reason, found)


def why_hooks(
    computation: Computation[Any, Any], options: ComputationOptions, readings: Mapping[str, Sequence[Reading]]
) -> str:
    """Why the records of a computation run in hooks. Empty: its windows may be kept by columns."""
    if reason := computation._why_not_by_columns():
        return reason
    if not options.strong:
        return "its productions are weak"
    several = [stream for stream, each in readings.items() if len(each) > 1]
    return _several_ways(several[0]) if several else ""


def column_reading(stream: PlannedStream, readings: Sequence[Reading]) -> ColumnReading | str:
    """How a stream's records are read from columns. A text: why not. A function or a user's codec needs values."""
    if stream.codec is None or stream.codec.format is not ValueFormat.MSGPACK:
        return "its stream has bytes, protobuf messages, or a codec of its own"
    if any(one.steps is None for one in readings):
        return "a function before it needs values: a filter by an expression, such as mw.col('price') > 5, does not"
    fields = column_fields(stream.type)
    if fields is None:
        return f"its stream's type {type_name(stream.type)} is no plain struct"
    steps = steps_for((step for one in readings for step in one.steps or ()), stream.type)
    return steps if isinstance(steps, str) else ColumnReading(fields, steps)


def _several_ways(stream: str) -> str:
    return f"it reads the stream {stream!r} in several ways"


def _why_no_table(stream: PlannedStream, readings: Sequence[Reading], reading: ColumnReading) -> str:
    """Why a hook that takes tables gets values of a stream that can be read from columns."""
    if len(readings) > 1:
        return _several_ways(stream.name)
    kind = readings[0].type if readings and readings[0].type is not UNKNOWN else stream.type
    whole = whole_fields(kind)
    return whole if isinstance(whole, str) else reading.problem(whole.wanted)


def _why_rows(stream: PlannedStream, key: KeyExtractor, plan: Plan) -> str:
    """Why the records of a stream do not come as columns."""
    why = _why_one_by_one(stream, plan)
    if why is None:
        return _why_no_column(stream, key)
    shown = named([repr(one) for one in sorted(stream.producers)])
    return f"its records come one by one from {shown}{why and ': '}{why}"


def _why_one_by_one(stream: PlannedStream, plan: Plan) -> str | None:
    """Why the producers of a stream make a value of each record. None: they do not, or the records are injected."""
    for name in sorted(stream.producers):
        made = plan.computations[name].computation
        why = "" if made is None else made._why_one_by_one(stream.name)
        if why is not None:
            return why
    if not stream.producers:
        return None
    if stream.name in plan.derived:
        return "other streams are made of its records"
    for name in sorted(stream.consumers):
        if why := _why_no_column(stream, plan.computations[name].inputs[stream.name]):
            return f"{why} at {name!r}"
    return None


def _why_no_column(stream: PlannedStream, key: KeyExtractor) -> str:
    """Why no column has the keys of a consumer."""
    source = key_source(key.to_proto(stream.type))
    if source is None:
        return "its key is no single field of the records" if key.function is None else "its key is computed by code"
    if isinstance(source, bytes):
        return ""
    kind = type_at(stream.type, key.fields[0])
    if kind in (None, Any) or supertype(unless_none(kind) or kind) in (str, int):  # another reason says that it is none
        return ""
    return f"its key {key.fields[0]!r} is no text and no int"
