"""Writing state rows in slices, and deleting emptied rows.

Most rows are written without a comparison with the stored row. The reasons:

- All rows of a key come from journals of one lineage. Commit numbers grow along a lineage.
- A journal has one current sequencer. Calls with another sequencer, and calls for a sealed journal, are dropped.
- So all stored rows of the journal's keys have commit numbers up to ``flushed``. It starts at the head's commit when
  the database is opened, or the journal is created or fenced. Each write raises it to the largest commit written.
- A row ahead of the head is refused.

A row above ``flushed`` is therefore newer than any stored row. A row at or below ``flushed`` is compared with the
stored row in the same slice. Flushes are written one after another, so no other write of the key is in progress. If a
call has several rows of a key, only the newest of them is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from zlib import crc32

from millwheel.model.envelope import FORMAT_VERSION, pack_header, wrap
from millwheel.model.incarnation import IncarnationId
from millwheel.store import journal_rules as rules
from millwheel.store import layout
from millwheel.store.contract import CorruptValueError, StateRow
from millwheel.store.heads import JournalHeads
from millwheel.store.rocks import Rocks, RowBatch

__all__ = ["DropIncarnation", "Purge", "StateFlush"]

SLICE_ROWS: Final = 128
"""Rows in a slice. A slice takes about a third of a millisecond; appends and the event loop may wait that long."""

SLICE_BYTES: Final = 1 << 20

_MARK: Final = wrap(b"")


class StateFlush:
    """One ``write_states`` call. Once queued, only the store thread uses it."""

    def __init__(
        self,
        rocks: Rocks,
        heads: JournalHeads,
        incarnation: IncarnationId,
        journal: str,
        sequencer: int,
        rows: Sequence[StateRow],
    ) -> None:
        self._rocks = rocks
        self._heads = heads
        self._incarnation = incarnation
        self._prefix = layout.state_prefix(incarnation)
        self._journal = journal
        self._sequencer = sequencer
        self._rows = rows
        self._next = 0
        self._bound: int | None = None

    def advance(self, batch: RowBatch) -> bool:
        """Write a slice. Return True at the end, or when the journal has another sequencer."""
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

    def _put(self, rows: Sequence[StateRow], bound: int, batch: RowBatch) -> None:
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
        """Return the rows that are not older than the stored rows. A stored row that cannot be decoded is replaced."""
        doubtful = [row for row in rows if row.commit <= bound]
        stored = self._rocks.get([self._prefix + row.key for row in doubtful], state=True)
        older = {
            row.key
            for row, value in zip(doubtful, stored, strict=True)
            if value is not None and _commit_of(self._incarnation, row.key, value) > row.commit
        }
        return [row for row in rows if row.key not in older]


class Purge:
    """Deletes the rows that a journal emptied with commits up to ``truncation_point``, and their marks.

    No older row can be written any more. Every row of an entry up to the truncation point was acknowledged before the
    truncation point moved there. A successor replays only the entries above it. And calls of a process run in their
    order, so no attempt that was given up comes after its repetition.
    """

    def __init__(self, rocks: Rocks, heads: JournalHeads, journal: str, truncation_point: int | None) -> None:
        """``truncation_point`` None: the journal was dropped, so all of its marks are deleted."""
        self._rocks = rocks
        self._heads = heads
        self._journal = journal
        self._truncation_point = truncation_point
        prefix = layout.cleared_prefix(journal)
        # Starting at the prefix would scan over the deleted marks of earlier purges.
        self._start = prefix + layout.commit_bytes(heads.cleared.get(journal, 0))
        self._end = (
            layout.past(prefix) if truncation_point is None else prefix + layout.commit_bytes(truncation_point + 1)
        )

    def advance(self, batch: RowBatch) -> bool:
        """Delete a slice of rows. Return True at the end."""
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
        if self._truncation_point is None:
            self._heads.cleared.pop(self._journal, None)
        else:
            self._heads.cleared[self._journal] = self._truncation_point + 1
        return True


class DropIncarnation:
    """Deletes all rows of an incarnation in one step."""

    def __init__(self, incarnation: IncarnationId) -> None:
        self._prefix = layout.state_prefix(incarnation)

    def advance(self, batch: RowBatch) -> bool:
        """Stage the deletion, which is one range."""
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


def _commit_of(incarnation: IncarnationId, key: bytes, value: bytes) -> int:
    try:
        return layout.decode_row(incarnation, key, value).commit
    except CorruptValueError:
        return -1


def _is_emptied_by(commit: int, value: bytes) -> bool:
    payload = layout.commit_bytes(commit)
    return value == wrap(payload)
