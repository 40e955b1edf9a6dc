"""A sink into a table of Cassandra, as a program states it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

from millwheel.connectors.cassandra.columns import fields_of
from millwheel.connectors.cassandra.spec import TableSpec
from millwheel.connectors.sink import Sink, SinkShard, SinkWriter
from millwheel.model.time import Duration
from millwheel.sdk.errors import UsageError

__all__ = ["sink"]

T = TypeVar("T")

_TABLE: Final = re.compile(r"(\w+)\.(\w+)", re.ASCII)
_MAX_SECONDS: Final = 20 * 365 * 86_400
"""Cassandra's limit of a time to live: 20 years."""


@overload
def sink(
    table: str,
    kind: type[T],
    *,
    settings: str | os.PathLike[str],
    row: None = None,
    delete: Callable[[T], bool] | None = None,
    ttl: Duration | None = None,
) -> Sink[T]: ...
@overload
def sink(
    table: str,
    kind: Any,
    *,
    settings: str | os.PathLike[str],
    row: Callable[[T], Any],
    delete: Callable[[T], bool] | None = None,
    ttl: Duration | None = None,
) -> Sink[T]: ...
def sink(
    table: str,
    kind: Any,
    *,
    settings: str | os.PathLike[str],
    row: Callable[[Any], Any] | None = None,
    delete: Callable[[Any], bool] | None = None,
    ttl: Duration | None = None,
) -> Sink[Any]:
    """A sink that keeps the newest row of each primary key in a table, which must be there.

    Each record writes the row of its key: its fields become the columns of their names. A field that is None empties
    its column. Columns that the record has not stay as they are.

    Each write has a write time that grows with the batches of its shard (``USING TIMESTAMP``). So a batch that comes
    again writes the same rows, and a former process that wakes up brings back nothing that the shard has replaced.

    For example, totals that replace each other, and live for a month::

        settings = "/etc/millwheel/shop-cassandra.toml"
        totals.to("totals-table", cassandra.sink("shop.totals", Total, settings=settings, ttl=mw.days(30)))

    A table that follows another one::

        changes.to(
            "stock-table",
            cassandra.sink(
                "shop.stock",
                Stock,
                row=lambda change: change.row,
                delete=lambda change: change.operation == "delete",
                settings=settings,
            ),
        )

    Args:
        table: Keyspace and table, such as ``shop.totals``.
        kind: The type of a row: it has fields, with all columns of the primary key.
        settings: The path of a file on each worker, in TOML. It says where the cluster is and how it lets one in.
        row: The row of a record, which depends on the record alone: a clock or a random id in it would make other rows
            of a batch that comes again. None: the record is the row.
        delete: Whether a record deletes the row of its key, which depends on the record alone, too. None: none does.
        ttl: How long a row lives after it was written: whole seconds. None: as the table says.

    Raises:
        UsageError: An argument cannot be used.
    """
    named = _TABLE.fullmatch(table) if isinstance(table, str) else None
    if named is None:
        raise UsageError(f"a sink of Cassandra takes a keyspace and a table, as in 'shop.totals', not {table!r:.80}")
    fields_of(kind)
    for name, function in (("row", row), ("delete", delete)):
        if function is not None and not callable(function):
            raise UsageError(f"{name}= is a function of a record, not {function!r:.80}")
    path = os.fspath(settings) if isinstance(settings, str | os.PathLike) else ""
    if not path or not isinstance(path, str):
        raise UsageError(f"settings= is the path of a file on the workers, not {settings!r:.80}")
    return _CassandraSink(TableSpec(named[1], named[2], kind, path, row, delete, _seconds_of(ttl)))


def _seconds_of(ttl: object) -> int | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl % 1_000_000 or not 0 < ttl <= _MAX_SECONDS * 1_000_000:
        raise UsageError(f"ttl= is a duration of whole seconds up to 20 years, such as mw.days(30), not {ttl!r:.80}")
    return ttl // 1_000_000


@dataclass(frozen=True, slots=True)
class _CassandraSink(Sink[T]):
    spec: TableSpec[T]

    async def open_writer(self, place: SinkShard) -> SinkWriter[T]:
        # The driver is loaded where a topology runs.
        from millwheel.connectors.cassandra.writer import open_writer

        return await open_writer(self.spec, place)
