"""Which changes count while the rows of a table are copied, and which ones a copied row already has. Pure.

Rows are copied in the order of the primary key, some at a time. Those between the keys ``settled`` and ``copied`` are
of one snapshot of the database. The log is read from before that snapshot, and a snapshot says which transactions it
sees. So of each change it is known whether the copied row has it.

*Invariant (G1): the records of a key are its row in a snapshot, if that has one, and then all changes by transactions
that this snapshot does not see, each once.* Three rules make it so:

1. A change of a row that is not yet copied does not count. Its transaction was visible to all when the log was read up
   to it, so the later snapshot of the row sees it. The log is not read beyond a transaction that is still invisible.
2. A change of a row between both keys counts if the snapshot does not see its transaction.
3. A change of a row up to ``settled`` counts. The log was read up to a place behind all that the snapshot sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from millwheel.connectors.postgres.pgoutput import Relation, Row, RowMessage, Truncate, Unchanged
from millwheel.connectors.postgres.transactions import Copy, FoundChange, Key, Position

__all__ = ["Beyond", "Snapshot", "counted", "keys_of", "settled", "with_rows"]

_XIDS: Final = 1 << 32
"""The log has the lower half of a transaction's number, and a snapshot has the whole number."""

Beyond = tuple[bool, bool]
"""Whether a key is beyond ``settled``, and beyond ``copied``. Only the database knows the order of keys."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which transactions a snapshot of the database sees: those below ``end``, without the ones that were running.

    ``end`` follows the largest number of a transaction that had ended. Larger ones may have been running, too.
    """

    end: int
    running: frozenset[int]
    """The lower halves of their numbers."""

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From the text of a ``pg_snapshot``, such as ``10:20:10,14,15``."""
        _, end, running = text.split(":")
        return cls(int(end), frozenset(int(one) % _XIDS for one in running.split(",") if one))

    def sees(self, xid: int) -> bool:
        """Whether a transaction that has committed is visible.

        Its number is at most 2**31 away. A server with a slot that is further behind takes no more writes.
        """
        distance = (xid - self.end + _XIDS // 2) % _XIDS - _XIDS // 2
        return distance < 0 and xid not in self.running


def with_rows(copy: Copy, last: Key | None, *, ended: bool) -> Copy:
    """The copy after more rows of its snapshot.

    Args:
        copy: As before.
        last: The key of the last one. None: there was none.
        ended: Whether the table has no more rows in the snapshot.
    """
    return structs.replace(copy, copied=copy.copied if last is None else last, ended=ended)


def settled(position: Position) -> Position:
    """The position without what is no longer needed: a snapshot, where the log was read behind all that it sees.

    With the last snapshot, the copy is over.
    """
    copy = position.copy
    if copy is None or not copy.snapshot or position.lsn < copy.until:
        return position
    after = None if copy.ended else structs.replace(copy, settled=copy.copied, snapshot="", until=0)
    return structs.replace(position, copy=after)


def keys_of(found: FoundChange, names: Sequence[str]) -> list[Key] | None:
    """The primary keys of the row before and of the row after, as far as there are such rows.

    None: the change does not have them. An update that leaves the key alone may have it once.
    """
    change = found.change
    if isinstance(change, Truncate):
        return []
    before = None if change.before is None else _key(change.before, found.relation, names)
    after = None if change.after is None else _key(change.after, found.relation, names, instead=change.before)
    if change.kind == "U" and change.before is None:
        before = after
    wanted = {"I": [after], "U": [before, after], "D": [before]}[change.kind]
    keys = [one for one in wanted if one is not None]
    return keys if len(keys) == len(wanted) else None


def _key(row: Row, relation: Relation, names: Sequence[str], instead: Row | None = None) -> Key | None:
    places = {column.name: place for place, column in enumerate(relation.columns)}
    key = []
    for name in names:
        if (place := places.get(name)) is None:
            return None
        value = row[place]
        if isinstance(value, Unchanged) and instead is not None:
            value = instead[place]
        if value is None or isinstance(value, Unchanged):
            return None
        key.append(value.decode())
    return tuple(key)


def counted(copy: Copy, found: FoundChange, beyond: Sequence[Beyond] | None) -> FoundChange | None:
    """What of a change counts. None: nothing does.

    An update may move a row from the rows that were copied to those that will be, or back. It then counts as a deletion
    or as an insertion.

    Args:
        copy: How far the rows are copied.
        found: The change.
        beyond: Where its keys are, in the order of :func:`keys_of`. None: it does not have them.
    """
    change = found.change
    if isinstance(change, Truncate):
        return found
    if beyond is None:
        return replace(
            found,
            problem=f"the old row has no primary key, so it is not known whether it was copied before this change. "
            f'While rows are copied: ALTER TABLE "{found.relation.schema}"."{found.relation.name}" REPLICA IDENTITY '
            "DEFAULT, or FULL",
        )
    sees = bool(copy.snapshot) and found.transaction.lsn < copy.until
    sees = sees and Snapshot.parse(copy.snapshot).sees(found.transaction.xid)
    counts = [_counts(copy, one, sees) for one in beyond]
    if all(counts):
        return found
    if not any(counts):
        return None
    return replace(found, change=_deletion(change) if counts[0] else _insertion(change))


def _counts(copy: Copy, beyond: Beyond, sees: bool) -> bool:
    beyond_settled, beyond_copied = beyond
    if not beyond_settled:
        return True
    return not sees and (copy.ended or not beyond_copied)


def _deletion(change: RowMessage) -> RowMessage:
    return RowMessage("D", change.relation, change.before, change.whole, None)


def _insertion(change: RowMessage) -> RowMessage:
    after, before = change.after, change.before
    if change.whole and after is not None and before is not None:
        after = tuple(old if isinstance(new, Unchanged) else new for new, old in zip(after, before, strict=True))
    return RowMessage("I", change.relation, None, False, after)
