"""What MillWheel asks of a store: a fenced journal per interval, and state rows written behind it.

One commit is one append (design of section 6.1.2, checkpoints that mimic a log). The append is
conditional on the journal's sequencer and commit counter, so of two processes that both believe they
own an interval only the one with the newest sequencer can write (section 6.2). State rows are
written later, from committed entries only, and carry the commit number that they show: of two
writes of one row the one with the larger commit number stands, in whatever order they arrive.

Every implementation passes the same suite, ``tests/contracts/test_store_contract.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from millwheel.core.keys import KeyInterval

__all__ = [
    "TERMINAL_SEQUENCER",
    "Append",
    "CorruptValueError",
    "JournalExistsError",
    "JournalHead",
    "JournalMissingError",
    "PartId",
    "SequencerRefusedError",
    "StateRow",
    "StateStore",
    "StoreConflictError",
    "StoreError",
    "StoreInUseError",
    "StoreUnavailableError",
]

TERMINAL_SEQUENCER: Final = (1 << 63) - 1
"""The sequencer of a sealed journal: no owner's sequencer exceeds it, so nothing is appended any more."""


class StoreError(Exception):
    """Anything that a store reports; the message says what to do."""


class StoreUnavailableError(StoreError):
    """The write or read may or may not have happened: repeat it with the identical bytes."""


class StoreInUseError(StoreError):
    """Another process has the store's directory: it works again when that process has ended."""


class StoreConflictError(StoreError):
    """A directory holds something else than a store that this software opens. Nothing in it was changed."""


class JournalMissingError(StoreError):
    """The journal was never created, or was dropped. Never to be read as an empty journal."""


class JournalExistsError(StoreError):
    """create_journal met a journal of that name."""


class CorruptValueError(StoreError):
    """A stored value is missing, or its checksum or format does not hold; ``where`` names it, ``why`` says more."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class SequencerRefusedError(StoreError):
    """The journal holds ``sequencer`` and ``commit``: the caller's sequencer or commit number lost."""

    def __init__(self, journal: str, sequencer: int, commit: int) -> None:
        super().__init__(f"journal {journal} is held by sequencer {sequencer} at commit {commit}")
        self.journal = journal
        self.sequencer = sequencer
        self.commit = commit


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """One part of a journal's base, or of a large entry: what it holds (``name``), who wrote it, and at which commit.

    The writer's sequencer is part of the id, so a deposed owner can never overwrite a part that the
    committed list of its successor names.
    """

    name: str
    sequencer: int
    commit: int


@dataclass(frozen=True, slots=True)
class JournalHead:
    """The static values of a journal.

    Entries ``floor + 1 .. commit`` together with ``parts`` are all that a takeover reads. ``parts`` are those of the
    base, and of the entries that are too large for one append.
    """

    sequencer: int
    commit: int
    floor: int
    parts: tuple[PartId, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """One group commit: entry ``commit`` of the journal, written only if the journal is at ``commit - 1``.

    ``floor`` and ``parts`` replace those of the head in the same atomic write; the parts were all
    acknowledged before. ``sync`` False lets the store acknowledge before the write is on disk (for
    computations whose owner asked for neither exactly-once nor strong productions).
    """

    sequencer: int
    commit: int
    floor: int
    parts: tuple[PartId, ...]
    entry: bytes
    sync: bool = True


@dataclass(frozen=True, slots=True)
class StateRow:
    """All that is stored of one key, as commit number ``commit`` left it.

    An empty blob says that nothing is left: such a row is written, but reads treat it as absent.
    """

    key: bytes
    commit: int
    blob: bytes


class StateStore(Protocol):
    """The contract. Journals and computations are named by incarnation ids that are never used twice."""

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        """Create a journal without entries: sequencer 0, commit and floor ``commit``. JournalExistsError if it exists.

        The child of a split or merge starts at its parents' largest sealed commit, so that the commit
        numbers of a key's rows grow over lineages, too; ``write_states`` relies on it.
        """

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """Take the journal for ``sequencer`` and return its head as it now stands (section 6.2).

        Durable before it returns. SequencerRefusedError unless ``sequencer`` is larger than the one held;
        JournalMissingError if there is no such journal. After it no append by an older sequencer succeeds.
        A repetition after StoreUnavailableError that is refused with the caller's own sequencer says that
        the first attempt took effect: a sequencer opens a journal once, for one process.
        """

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        """End the journal for good, on behalf of a successor that was given ``sequencer``.

        Its sequencer becomes terminal; durable before it returns the head. A journal that is sealed already stays as
        it is, so of the successors (the children of a split, each with a sequencer of its own) any may seal, in any
        order and as often as it likes, and all see the same last commit. SequencerRefusedError if a larger sequencer
        holds the journal: the caller is older than its owner.
        """

    async def read_head(self, journal: str) -> JournalHead:
        """The head, without fencing; for inspection."""

    async def append(self, journal: str, append: Append) -> None:
        """The commit point (G2, G3). SequencerRefusedError unless the journal holds exactly
        ``append.sequencer`` and ``append.commit - 1``; then nothing is written at all.

        A repetition after StoreUnavailableError that is refused with the caller's own sequencer and
        commit says that the first attempt took effect.
        """

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        """Entries ``first .. last``, in order; CorruptValueError if one of them is missing or damaged."""

    async def delete_entries(self, journal: str, below: int) -> None:
        """Forget entries with a commit number below ``below``, which is at most the committed floor + 1."""

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        """Store a part, durably before it returns. A takeover reads it only if an append has named it."""

    async def read_parts(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        """The parts' blobs, in the order asked for; CorruptValueError if one is missing or damaged."""

    async def list_parts(self, journal: str) -> list[PartId]:
        """Every stored part, named by the head or not; for collection."""

    async def delete_parts(self, journal: str, parts: Sequence[PartId]) -> None:
        """Forget parts that the committed head does not name."""

    async def write_states(self, computation: str, journal: str, sequencer: int, rows: Sequence[StateRow]) -> None:
        """Write rows from committed entries of ``journal``, durably before it returns.

        A row never replaces one of a larger commit number, be they written in one call or in several,
        by one owner or by several, before or after a restart. A store may also drop the whole call, or
        the rest of it, without an error if ``sequencer`` no longer holds ``journal``: the successor
        replays the same entries and writes the same rows. A store may refuse rows ahead of the journal's
        commit (StoreError), and may forget an emptied row once the journal's floor has passed it.
        """

    async def read_states(self, computation: str, keys: Sequence[bytes]) -> list[StateRow | None]:
        """The rows of ``keys``, in the order asked for; None where nothing was written, or nothing is left."""

    async def scan_states(
        self, computation: str, interval: KeyInterval, after: bytes | None, limit: int
    ) -> list[StateRow]:
        """Up to ``limit`` rows of ``interval`` with keys above ``after``, in key order; fewer only at the end."""

    async def drop_journal(self, journal: str) -> None:
        """Delete the journal with all its entries and parts. Nothing happens if it does not exist."""

    async def drop_computation(self, computation: str) -> None:
        """Delete all state rows of ``computation``."""

    async def close(self) -> None:
        """Release what the store holds. Outstanding calls fail with StoreUnavailableError."""
