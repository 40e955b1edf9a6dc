"""What a program says of a table that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["TableSpec"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableSpec(Generic[T]):
    """The arguments of a sink.

    Attributes:
        keyspace: That of the table, and of its progress.
        table: The name of the table.
        kind: The type of a row.
        settings: The path of the file that says how the cluster is reached.
        row: The row of a record. None: the record is the row.
        delete: Whether a record deletes its row. None: none does.
        ttl: How many seconds a row lives. None: as the table says.
    """

    keyspace: str
    table: str
    kind: Any
    settings: str
    row: Callable[[T], Any] | None
    delete: Callable[[T], bool] | None
    ttl: int | None
