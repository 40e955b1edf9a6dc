"""Compares the results of the same job on two systems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from examples.demo.watching import Found

__all__ = ["differences", "record_counts"]

_SHOWN = 5


def record_counts(found: Found) -> dict[str, int]:
    """The number of records by stream."""
    return {one.name.replace("_", " "): len(getattr(found, one.name)) for one in fields(found)}


def differences(expected: Found, found: Found) -> Iterator[str]:
    """Every difference between the results of two runs, record by record. Empty if they are equal."""
    for one in fields(expected):
        wanted: Counter[Any] = Counter(map(repr, getattr(expected, one.name)))
        got: Counter[Any] = Counter(map(repr, getattr(found, one.name)))
        for what, records in (("missing", wanted - got), ("too many", got - wanted)):
            if records:
                shown = ", ".join(list(records)[:_SHOWN])
                yield f"{one.name.replace('_', ' ')}: {records.total():,} {what}, such as {shown}"
