"""Journals in Cassandra: one partition each, with the head in static columns.

Invariant (G2, G3): every change of a head is one lightweight transaction with a condition on the sequencer. So of two
owners only the one with the larger sequencer can change the head. The transaction that writes an entry also sets the
commit number, so an entry exists exactly if the commit number has reached it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Generator, Sequence
from typing import Final

from cassandra import ConsistencyLevel
from cassandra.cluster import Session as DriverSession
from cassandra.query import PreparedStatement

from millwheel.model.envelope import HEADER_BYTES, PIECE_BYTES, deflating, inflating, wrap
from millwheel.store import journal_rules as rules
from millwheel.store.cassandra.schema import HEAD_ROW
from millwheel.store.cassandra.session import CassandraSession, Row
from millwheel.store.contract import (
    TERMINAL_SEQUENCER,
    Append,
    CorruptValueError,
    JournalExistsError,
    JournalHead,
    SequencerRefusedError,
    StoreError,
)
from millwheel.store.layout import decode_parts, encode_parts

__all__ = ["FOR_EVER", "MAX_VALUE_BYTES", "Journals"]

MAX_VALUE_BYTES: Final = 15 << 20
"""The largest entry or state row. Cassandra accepts mutations of up to half a commit log segment, 16 MiB by default."""

FOR_EVER: Final = 1 << 62
"""A write time above any other. A deletion with this time is final, also if clocks are wrong. This is safe because ids
and commit numbers of a journal are never used again."""

MAX_CONCURRENT_READS: Final = 64

MAX_KEPT_HEADS: Final = 10_000
"""Heads kept in memory: the most recently written ones. A worker that gives up a journal does not notify the store."""

_HEAD: Final = f"WHERE journal = ? AND entry = {HEAD_ROW}"
_CONDITION: Final = "WHERE journal = ? AND entry = ? IF sequencer = ? AND commit = ? AND truncation_point <= ?"
STATEMENTS: Final = {
    "create": (
        "INSERT INTO {k}.journals (journal, entry, value, sequencer, commit, truncation_point, creator) "
        f"VALUES (?, {HEAD_ROW}, ?, 0, ?, ?, ?) IF NOT EXISTS"
    ),
    "head": f"SELECT sequencer, commit, truncation_point, parts, entry FROM {{k}}.journals {_HEAD}",
    "creator": f"SELECT creator, entry FROM {{k}}.journals {_HEAD}",
    "fence": "UPDATE {k}.journals SET sequencer = ? WHERE journal = ? IF sequencer < ?",
    "seal": f"UPDATE {{k}}.journals SET sequencer = {TERMINAL_SEQUENCER} WHERE journal = ? IF sequencer <= ?",
    "append": f"UPDATE {{k}}.journals SET commit = ?, truncation_point = ?, value = ? {_CONDITION}",
    "append_parts": f"UPDATE {{k}}.journals SET commit = ?, truncation_point = ?, parts = ?, value = ? {_CONDITION}",
    "entries": "SELECT entry, value FROM {k}.journals WHERE journal = ? AND entry >= ? AND entry <= ?",
    "delete": (
        f"DELETE FROM {{k}}.journals USING TIMESTAMP {FOR_EVER} WHERE journal = ? AND entry > {HEAD_ROW} AND entry < ?"
    ),
    "drop": (
        "BEGIN BATCH "
        "DELETE sequencer, commit, truncation_point, parts, creator FROM {k}.journals WHERE journal = ? IF EXISTS; "
        f"DELETE FROM {{k}}.journals {_HEAD}; "
        "APPLY BATCH"
    ),
}
_LINEARIZABLE: Final = {"head", "creator"}


class Journals:
    """The journals of one keyspace."""

    def __init__(self, session: CassandraSession, statements: dict[str, PreparedStatement]) -> None:
        """``statements``: the result of :meth:`prepare`."""
        self._session = session
        self._statements = statements
        self._own: dict[str, JournalHead] = {}
        """The heads that this process wrote last as their owner.

        Only the owner changes truncation point and part list. A successor never lowers the truncation point. So entries
        below it can be deleted without a read, and an append with the same part list need not write the list again.
        """

    @staticmethod
    def prepare(driver: DriverSession, keyspace: str) -> dict[str, PreparedStatement]:
        """Prepare the statements. Blocks."""
        prepared = {name: driver.prepare(text.format(k=keyspace)) for name, text in STATEMENTS.items()}
        for name in _LINEARIZABLE:
            prepared[name].consistency_level = ConsistencyLevel.SERIAL
        return prepared

    async def create(self, journal: str, commit: int) -> None:
        """See :meth:`StateStore.create_journal`. The creator's id shows whether an earlier attempt succeeded."""
        rules.created(journal, None, commit)
        creator = uuid.uuid4()

        async def attempt(repeated: bool) -> None:
            values = (journal, wrap(b""), commit, commit, creator)
            (answer,) = await self._session.execute(self._statements["create"], values)
            if not answer[0] and not (repeated and await self._created_by(journal) == creator):
                rules.created(journal, await self.head(journal), commit)
                raise JournalExistsError(f"journal {journal} existed a moment ago")

        await self._session.settle(attempt)

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.fence`. The head is read after the fence, when no older owner can change it."""
        if sequencer >= TERMINAL_SEQUENCER:
            raise ValueError(f"sequencer {sequencer} is reserved: it marks a sealed journal")

        async def attempt(repeated: bool) -> None:
            answer = await self._session.execute(self._statements["fence"], (sequencer, journal, sequencer))
            held = _held(journal, answer)
            if held is not None and not (repeated and held == sequencer):
                raise SequencerRefusedError(journal, held, (await self.head(journal)).commit)

        await self._session.settle(attempt)
        head = await self._session.settle(lambda _: self.head(journal))
        if head.sequencer != sequencer:
            raise SequencerRefusedError(journal, head.sequencer, head.commit)
        self.keep(journal, head)
        return head

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        """See :meth:`StateStore.seal`."""
        if sequencer >= TERMINAL_SEQUENCER:
            raise ValueError(f"sequencer {sequencer} is reserved: it marks a sealed journal")

        async def attempt(_: bool) -> JournalHead:
            held = _held(journal, await self._session.execute(self._statements["seal"], (journal, sequencer)))
            head = await self.head(journal)
            if held is not None and held != TERMINAL_SEQUENCER:
                raise SequencerRefusedError(journal, head.sequencer, head.commit)
            return head

        head = await self._session.settle(attempt)
        self._own.pop(journal, None)
        return head

    async def head(self, journal: str) -> JournalHead:
        """See :meth:`StateStore.read_head`. Linearizable: the read completes or aborts a transaction in flight."""
        return rules.present(journal, await self.head_or_none(journal))

    async def head_or_none(self, journal: str) -> JournalHead | None:
        """Return the head, or None if there is no such journal."""
        rows = await self._session.execute(self._statements["head"], (journal,))
        return _decode_head(journal, rows[0]) if rows else None

    async def append(self, journal: str, append: Append) -> None:
        """See :meth:`StateStore.append`. One transaction writes one row and the head; ``sync`` has no effect here."""
        if (size := len(append.entry) + HEADER_BYTES) > MAX_VALUE_BYTES:
            raise StoreError(
                f"entry {append.commit} of journal {journal} has {size} bytes, more than {MAX_VALUE_BYTES}"
            )
        if append.truncation_point > append.commit or append.sequencer >= TERMINAL_SEQUENCER:
            # The append is either refused or invalid. The current head decides which error is raised.
            rules.appended(journal, await self.head(journal), append)
        # Equal entries give equal values, so the caller's repetition of an append has the same bytes.
        value = await _in_turns(deflating(append.entry)) if append.deflate else wrap(append.entry)
        statement, values = self._bind_append(journal, append, value)

        async def attempt(repeated: bool) -> None:
            answer = await self._session.append(statement, values)
            held = _held(journal, answer)
            if held is None:
                return
            _, _, commit, truncation_point = _columns(answer[0])
            applied = repeated and (held, commit) == (append.sequencer, append.commit)
            if not applied:
                rules.appended(journal, JournalHead(held, commit, truncation_point, ()), append)
                raise SequencerRefusedError(journal, held, commit)

        try:
            await self._session.settle(attempt)
        except BaseException:
            # The append may have changed the head, so the remembered part list may differ from the stored one.
            self._own.pop(journal, None)
            raise
        self.keep(journal, JournalHead(append.sequencer, append.commit, append.truncation_point, append.parts))

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        """See :meth:`StateStore.read_entries`."""
        entries, size = list[bytes](), 0
        for start in range(first, last + 1, MAX_CONCURRENT_READS):
            end = min(start + MAX_CONCURRENT_READS - 1, last)
            rows = await self._session.repeat(self._statements["entries"], (journal, start, end))
            found: dict[int, bytes] = dict(rows)
            for commit in range(start, end + 1):
                entry = await _in_turns(inflating(found.get(commit), f"entry {commit} of journal {journal}"))
                entries.append(entry)
                size += len(entry)
                if size >= PIECE_BYTES:  # of entries that are too small for a stop of their own
                    size = 0
                    await asyncio.sleep(0)
        return entries

    async def delete_entries(self, journal: str, below: int) -> None:
        """See :meth:`StateStore.delete_entries`. Writes one range tombstone; reads start behind it."""
        own = self._own.get(journal)
        if own is None or below > own.truncation_point + 1:
            head = await self.head_or_none(journal)
            if head is None:
                return
            rules.check_deletable(journal, head, below)
        await self._session.execute_gated(self._statements["delete"], (journal, below))

    async def drop(self, journal: str) -> None:
        """See :meth:`StateStore.drop_journal`. A transaction deletes the head, so no later append succeeds."""
        await self._session.settle(lambda _: self._session.execute(self._statements["drop"], (journal, journal)))
        await self._session.repeat(self._statements["delete"], (journal, TERMINAL_SEQUENCER))
        self._own.pop(journal, None)

    def keep(self, journal: str, head: JournalHead) -> None:
        """Remember a head that was just written. A head that this drops from memory is read again when needed."""
        self._own.pop(journal, None)
        self._own[journal] = head
        if len(self._own) > MAX_KEPT_HEADS:
            del self._own[next(iter(self._own))]

    def _bind_append(self, journal: str, append: Append, value: bytes) -> tuple[PreparedStatement, tuple[object, ...]]:
        condition = (append.sequencer, append.commit - 1, append.truncation_point)
        row = (value, journal, append.commit, *condition)
        own = self._own.get(journal)
        if own is not None and (own.sequencer, own.parts) == (append.sequencer, append.parts):
            return self._statements["append"], (append.commit, append.truncation_point, *row)
        return self._statements["append_parts"], (
            append.commit,
            append.truncation_point,
            encode_parts(append.parts),
            *row,
        )

    async def _created_by(self, journal: str) -> uuid.UUID | None:
        rows = await self._session.execute(self._statements["creator"], (journal,))
        return rows[0][0] if rows else None


async def _in_turns(steps: Generator[None, None, bytes]) -> bytes:
    """The result. At each stop the other tasks get their turn: each interval of this worker uses this loop."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: bytes = end.value
            return result
        await asyncio.sleep(0)


def _held(journal: str, answer: Sequence[Row]) -> int | None:
    """Return None if the transaction was applied, else the journal's sequencer; JournalMissingError if none exists."""
    applied, *columns = answer[0]
    if applied:
        return None
    if not columns or columns[0] is None:
        rules.present(journal, None)
    sequencer: int = columns[0]
    return sequencer


def _columns(row: Row) -> tuple[bool, int, int, int]:
    applied, sequencer, commit, truncation_point = row
    return applied, sequencer, commit, truncation_point


def _decode_head(journal: str, row: Row) -> JournalHead | None:
    sequencer, commit, truncation_point, parts, _ = row
    if sequencer is None:
        return None
    if commit is None or truncation_point is None:
        raise CorruptValueError(f"head of journal {journal}", "a column is missing")
    named = () if parts is None else decode_parts(parts, f"part list of journal {journal}")
    return JournalHead(sequencer, commit, truncation_point, named)
