"""Writing state rows in slices, and forgetting emptied ones.

Why a row need not be compared with the stored one before it is written, and when it must be:
all rows of a key come from journals of one lineage, whose commit numbers grow, and each journal has
one holder at a time; the calls of older holders, and of a sealed journal's, are dropped. So the rows
written so far of the journal's keys have commit numbers up to ``flushed``, which is the head's commit when
the database is opened, the journal is created or fenced, and the largest one written since. (No row
is ahead of the head: such a call is refused.) A row above that bound is newer than any stored one. A row
at or below it is compared, in the same slice: flushes are written one after another, so nothing of
the same key is under way. A call that has a key twice is reduced to the newest row of each key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from millwheel.store import journal_rules as rules
from millwheel.store import layout
from millwheel.store.contract import CorruptValueError, StateRow
from millwheel.store.envelope import FORMAT_VERSION, pack_header, wrap
from millwheel.store.heads import JournalHeads
from millwheel.store.rocks import Batch, Rocks

__all__ = ["DropComputation", "Purge", "StateFlush"]

SLICE_ROWS: Final = 128
"""Rows in a slice: a third of a millisecond, for which an append may have to wait and the event loop stands still."""

SLICE_BYTES: Final = 1 << 20

_MARK: Final = wrap(b"")


class StateFlush:
    """One write_states call. It belongs to the store thread once it is queued."""

    def __init__(
        self,
        rocks: Rocks,
        heads: JournalHeads,
        computation: str,
        journal: str,
        sequencer: int,
        rows: Sequence[StateRow],
    ) -> None:
        self._rocks = rocks
        self._heads = heads
        self._computation = computation
        self._prefix = layout.state_prefix(computation)
        self._journal = journal
        self._sequencer = sequencer
        self._rows = rows
        self._next = 0
        self._bound: int | None = None

    def advance(self, batch: Batch) -> bool:
        """Write a slice; True at the end, or when the sequencer no longer holds the journal."""
        head = self._heads.find(self._journal)
        if head is None or head.sequencer != self._sequencer or not self._rows:
            return True
        if self._bound is None:
            newest = rules.check_rows(self._journal, head, self._rows)
            self._rows = _newest_of_each_key(self._rows)
            self._bound = self._heads.flushed[self._journal]
            self._heads.flushed[self._journal] = max(self._bound, newest)
        self._put(self._take_slice(), self._bound, batch)
        return self._next >= len(self._rows)

    def _take_slice(self) -> Sequence[StateRow]:
        start = self._next
        rows = self._rows[start : start + SLICE_ROWS]
        size = 0
        for count, row in enumerate(rows, 1):
            size += len(row.blob)
            if size >= SLICE_BYTES:
                rows = rows[:count]
                break
        self._next = start + len(rows)
        return rows

    def _put(self, rows: Sequence[StateRow], bound: int, batch: Batch) -> None:
        if any(row.commit <= bound for row in rows):
            rows = self._without_older(rows, bound)
        put, family, prefix = batch.put, self._rocks.state_family, self._prefix
        commit_bytes = layout.commit_bytes
        for row in rows:
            payload = commit_bytes(row.commit) + row.blob
            put(prefix + row.key, pack_header(FORMAT_VERSION, crc32(payload)) + payload, family)
            if not row.blob:
                put(layout.cleared_key(self._journal, row.commit, prefix + row.key), _MARK)
                self._heads.note_cleared(self._journal, row.commit)

    def _without_older(self, rows: Sequence[StateRow], bound: int) -> list[StateRow]:
        """The rows that are not older than the stored ones. What cannot be decoded is replaced."""
        doubtful = [row for row in rows if row.commit <= bound]
        stored = self._rocks.get([self._prefix + row.key for row in doubtful], state=True)
        older = {
            row.key
            for row, value in zip(doubtful, stored, strict=True)
            if value is not None and _commit_of(self._computation, row.key, value) > row.commit
        }
        return [row for row in rows if row.key not in older]


class Purge:
    """Deletes the rows that a journal emptied with commits up to ``floor``, and their marks.

    Nothing older can be written any more: every row of an entry up to the floor was acknowledged
    before the floor moved there, and a successor replays only what is above it.
    """

    def __init__(self, rocks: Rocks, heads: JournalHeads, journal: str, floor: int | None) -> None:
        """``floor`` None: the journal was dropped, so all of its marks go."""
        self._rocks = rocks
        self._heads = heads
        self._journal = journal
        self._floor = floor
        prefix = layout.cleared_prefix(journal)
        # Not from the prefix: the way there leads through the deleted marks of earlier purges.
        self._start = prefix + layout.commit_bytes(heads.cleared.get(journal, 0))
        self._end = layout.past(prefix) if floor is None else prefix + layout.commit_bytes(floor + 1)

    def advance(self, batch: Batch) -> bool:
        """Forget a slice of rows; True at the end."""
        marks = [key for key, _ in self._rocks.scan(self._start, self._end, limit=SLICE_ROWS)]
        named = [layout.name_cleared(self._journal, mark) for mark in marks]
        stored = self._rocks.get([key for _, key in named], state=True)
        family = self._rocks.state_family
        for mark, (commit, key), value in zip(marks, named, stored, strict=True):
            batch.delete(mark)
            if value is not None and _is_emptied_by(commit, value):
                batch.delete(key, family)
        if len(marks) == SLICE_ROWS:
            self._start = marks[-1] + b"\0"
            return False
        if self._floor is None:
            self._heads.cleared.pop(self._journal, None)
        else:
            self._heads.cleared[self._journal] = self._floor + 1
        return True


class DropComputation:
    """Deletes all rows of a computation at once."""

    def __init__(self, computation: str) -> None:
        self._prefix = layout.state_prefix(computation)

    def advance(self, batch: Batch) -> bool:
        """Stage the deletion; it is one range."""
        batch.delete_state_range(self._prefix, layout.past(self._prefix))
        return True


def _newest_of_each_key(rows: Sequence[StateRow]) -> Sequence[StateRow]:
    newest = {row.key: row for row in rows}
    if len(newest) == len(rows):
        return rows
    newest.clear()
    for row in rows:
        known = newest.get(row.key)
        if known is None or known.commit <= row.commit:
            newest[row.key] = row
    return list(newest.values())


def _commit_of(computation: str, key: bytes, value: bytes) -> int:
    try:
        return layout.decode_row(computation, key, value).commit
    except CorruptValueError:
        return -1


def _is_emptied_by(commit: int, value: bytes) -> bool:
    payload = layout.commit_bytes(commit)
    return value == wrap(payload)
