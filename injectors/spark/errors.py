"""Errors of the Spark sink."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.sdk.errors import MillwheelError, UsageError

__all__ = ["ColumnError", "OptionError", "RowError", "SinkError"]


class SinkError(MillwheelError):
    """The sink cannot continue. The message says why."""


class OptionError(UsageError):
    """An option of the sink is unknown, missing, or has an invalid value."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"option {name!r} of format 'millwheel' {what}")
        self.option = name


class ColumnError(UsageError):
    """A column is missing, or has a type that a record cannot have."""


class RowError(SinkError):
    """One row cannot become a record. ``id`` is its id as text. None if it has no id."""

    def __init__(self, stream: str, id_: str | None, partition: int, row: int, why: str) -> None:
        named = "" if id_ is None else f" with id {id_[:200]!r}"
        super().__init__(f"stream {stream!r}: the row{named} (row {row:,} of partition {partition}): {why}")
        self.id = id_


def listed(names: Iterable[str]) -> str:
    """Join names for a message."""
    return ", ".join(names)
