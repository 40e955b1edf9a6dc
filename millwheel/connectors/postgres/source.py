"""A source of the changes of a table, from a logical replication slot that is looked into by SQL."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any, Final, Generic, Literal, TypeVar, get_args
from weakref import finalize

from millwheel.connectors.postgres.peeking import Session
from millwheel.connectors.postgres.rows import ChangedRow, fields_of
from millwheel.connectors.postgres.session import refuse_password
from millwheel.connectors.postgres.slots import ReplicatedTable
from millwheel.connectors.postgres.transactions import Position
from millwheel.connectors.source import Read, Source, SplitReader, Splits
from millwheel.connectors.threads import CallThread
from millwheel.sdk.errors import UsageError

__all__ = ["changes"]

T = TypeVar("T")

Initial = Literal["none", "copy"]

_SLOT: Final = re.compile("[a-z0-9_]{1,63}")
_WAIT: Final = 0.05
"""Seconds that a read waits for the database. It goes on by itself, and the next read takes what it found."""


def changes(
    kind: type[T], *, table: str, slot: str, publication: str, conninfo: str = "", initial: Initial = "none"
) -> Source[ChangedRow[T], Position]:
    """A source of the changes of a table of PostgreSQL, by logical replication. Each is read once, in commit order.

    It begins with the transactions that commit after the topology has made the slot, which it does by itself. If the
    slot exists, it begins where that stands. With ``initial="copy"``, the rows that the table has then come first.

    For example, after ``CREATE PUBLICATION shop FOR TABLE sales``::

        SALES = postgres.changes(Sale, table="sales", slot="shop", publication="shop", conninfo="service=shop")
        sales = topology.source("sales", postgres.ChangedRow[Sale], SALES)
        by_item = sales.key_by(lambda change: change.row.item)

    Args:
        kind: The type of a row: a Struct or a dataclass. Its fields have the names of columns. Other columns are left
            out, also those that come later. A time with a time zone may be a ``datetime`` or a ``Timestamp``.
        table: Its name, such as ``sales`` or ``shop.sales``, as the catalog has it. Without a schema: in ``public``.
        slot: The name of the replication slot, which this stream alone uses.
        publication: A publication that has the table.
        conninfo: As libpq has it, such as ``service=shop``, without a password. What it does not say is found where the
            workers run. The role has the attribute REPLICATION.
        initial: What happens to the rows that are there at the beginning. ``copy``: each comes once, as a change
            ``read``, before the later changes of this row. The table needs a primary key. ``none``: they are not read.

    Raises:
        UsageError: An argument cannot be used.
    """
    return _TableSource(kind, table, slot, publication, conninfo, initial)


class _TableSource(Source[ChangedRow[T], Position], Generic[T]):
    """What :func:`changes` makes. Its only split is the slot."""

    def __init__(self, kind: type[T], table: str, slot: str, publication: str, conninfo: str, initial: Initial) -> None:
        fields_of(kind)
        if initial not in get_args(Initial):
            raise UsageError(f"initial is 'copy' or 'none', not {initial!r}")
        if _SLOT.fullmatch(slot) is None:
            raise UsageError(f"a replication slot has up to 63 of the characters a to z, 0 to 9 and _, not {slot!r}")
        schema, dot, name = table.partition(".")
        self.kind = kind
        self.place = ReplicatedTable(schema if dot else "public", name if dot else table, publication, slot)
        self.conninfo = refuse_password(conninfo)
        self.copies = initial == "copy"

    def identity(self) -> str:
        # The same slot may be found at another address, and rows may get more fields.
        place = self.place
        rows = "rows and " if self.copies else ""  # a stream that has begun has them, or never gets them
        return f"{rows}changes of {place.schema}.{place.table} from the slot {place.slot}"

    async def splits(self) -> Splits:
        return Splits([self.place.slot], final=True)

    async def open_reader(self, split: str, position: Position | None) -> SplitReader[ChangedRow[T], Position]:
        return _SlotReader(self, position)


class _SlotReader(SplitReader[ChangedRow[T], Position]):
    """Reads the slot by a session, which looks into it on a thread of its own.

    *Invariant (G1): the slot is advanced only to a position that is committed.* A computation with strong productions
    has one commit in flight at most, and a position is read from only after its commit was sealed. So the commit before
    that one is in the journal: it has the position at which the former read began. *Who may break it:* a pipeline with
    two commits in flight, or a reader that is used at another position than that of its last read. A process that was
    deposed can advance the slot, but only to what was committed.
    """

    def __init__(self, source: _TableSource[T], position: Position | None) -> None:
        self._thread = CallThread("millwheel-postgres")
        self._session = Session[T](source.kind, source.place, source.conninfo, position, copies=source.copies)
        finalize(self, self._session.close).atexit = False  # a reader that is never closed, as in a test
        self._fetching: asyncio.Future[Read[ChangedRow[T], Position]] | None = None
        self._at = position
        """Where the split is, by its state."""
        self._former: Position | None = None
        """Where the read before began."""

    async def read(self) -> Read[ChangedRow[T], Position]:
        committed, self._former = self._former, self._at
        if began_now := self._fetching is None:
            most = self.most_records
            self._fetching = asyncio.ensure_future(self._thread.call(lambda: self._session.read(committed, most)))
            self._fetching.add_done_callback(_look_at)
        fetching = self._fetching
        assert fetching is not None
        done, _ = await asyncio.wait({fetching}, timeout=_WAIT)
        if not done:
            return Read([], self._at, behind=1)  # type: ignore[arg-type]  # None is the position of a beginning
        self._fetching = None
        read = fetching.result()
        self._at = read.position
        # What was found out before this read began does not say that nothing waits now.
        return read if began_now else replace(read, behind=1)

    async def close(self) -> None:
        if self._fetching is not None and not self._fetching.done():
            # The slot is in use as long as the server decodes.
            await asyncio.to_thread(self._session.cancel)
        await self._thread.end(self._session.close)


def _look_at(fetching: asyncio.Future[Any]) -> None:
    """Take the error of a call whose reader was closed meanwhile."""
    if not fetching.cancelled():
        fetching.exception()
