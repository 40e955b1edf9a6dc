"""The hook for the records of an input that is read through filters and functions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.declarations import DROPPED, Reading, as_it_is
from millwheel.sdk.records import Record

__all__ = ["reading_hook", "values_read"]

Hook = Callable[[Context[Any], Record[Any]], Awaitable[None] | None]


def reading_hook(computation: Computation[Any, Any], readings: Sequence[Reading]) -> Hook:
    """``process_record``, called for each reading with the value that its functions make. No readings: the hook itself.

    A function that raises makes the hook fail, as its own code would.
    """
    process = computation.process_record
    if not readings:
        return process
    if len(readings) > 1 and inspect.iscoroutinefunction(process):

        async def process_each(ctx: Context[Any], record: Record[Any]) -> None:
            for one in _read(record, readings):
                await process(ctx, one)

        return process_each
    if len(readings) > 1:

        def process_all(ctx: Context[Any], record: Record[Any]) -> None:
            for one in _read(record, readings):
                process(ctx, one)

        return process_all
    called, convert = readings[0].called, readings[0].convert
    if convert is as_it_is:

        def process_as(ctx: Context[Any], record: Record[Any]) -> Awaitable[None] | None:
            record.stream = called
            return process(ctx, record)

        return process_as

    def process_one(ctx: Context[Any], record: Record[Any]) -> Awaitable[None] | None:
        value = convert(record.value)
        if value is DROPPED:
            return None
        record._value = value
        record.stream = called
        return process(ctx, record)

    return process_one


def _read(record: Record[Any], readings: Sequence[Reading]) -> Iterator[Record[Any]]:
    given = record.value
    for reading in readings:
        value = reading.convert(given)
        if value is not DROPPED:
            record._value = value
            record.stream = reading.called
            yield record


def values_read(readings: Sequence[Reading]) -> Callable[[Any], list[Any]]:
    """A function from a value of an input to the values that the hook gets."""
    if not readings:
        return lambda value: [value]
    return lambda value: [made for one in readings if (made := one.convert(value)) is not DROPPED]
