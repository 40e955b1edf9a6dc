"""What the Spark sink refuses."""

from __future__ import annotations

from collections.abc import Iterable

from millwheel.sdk.errors import MillwheelError, UsageError

__all__ = ["ColumnError", "OptionError", "RowError", "SinkError"]


class SinkError(MillwheelError):
    """The sink cannot go on; the message says why."""


class OptionError(UsageError):
    """An option of the sink is unknown, missing, or says nothing that it may."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"option {name!r} of format 'millwheel' {what}")
        self.option = name


class ColumnError(UsageError):
    """A column is missing, or of a type that MillWheel's records do not have."""


class RowError(SinkError):
    """One row cannot become a record. ``id`` is its id as text, if it has one."""

    def __init__(self, stream: str, id_: str | None, partition: int, row: int, why: str) -> None:
        named = "" if id_ is None else f" with id {id_[:200]!r}"
        super().__init__(f"stream {stream!r}: the row{named} (row {row:,} of partition {partition}): {why}")
        self.id = id_


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    return ", ".join(names)
