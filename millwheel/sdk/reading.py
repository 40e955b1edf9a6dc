"""The hook for the records of an input that is read through filters and functions."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from millwheel.sdk.context import Context
from millwheel.sdk.declarations import DROPPED, Reading, as_it_is
from millwheel.sdk.records import Record

__all__ = ["hook_name", "one_reading", "reading_hook", "values_read"]

Hook = Callable[[Context[Any], Record[Any]], Awaitable[None] | None]


def hook_name(stream: str, readings: Sequence[Reading]) -> str:
    """The name by which the hook knows the records of ``stream``."""
    return readings[0].called if len(readings) == 1 else stream


def one_reading(decode: Callable[[bytes], Any], readings: Sequence[Reading]) -> Callable[[bytes], Any] | None:
    """A function from an encoded value to what the hook gets, or to DROPPED. None: the hook decodes the value itself.

    It runs before the hook, without the key's state. So a record that a filter drops needs none.
    """
    if len(readings) != 1 or readings[0].convert is as_it_is:
        return None
    convert = readings[0].convert
    return lambda encoded: convert(decode(encoded))


def reading_hook(process: Hook, readings: Sequence[Reading]) -> Hook:
    """The hook ``process``; with several readings, called for each with the value that its functions make.

    A function that raises makes the hook fail, as its own code would.
    """
    if len(readings) < 2:
        return process
    if inspect.iscoroutinefunction(process):

        async def process_each(ctx: Context[Any], record: Record[Any]) -> None:
            for one in _read(record, readings):
                await process(ctx, one)

        return process_each

    def process_all(ctx: Context[Any], record: Record[Any]) -> None:
        for one in _read(record, readings):
            process(ctx, one)

    return process_all


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
