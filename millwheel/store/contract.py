"""The store's contract: a fenced journal for each interval, and state rows that are written behind the journal.

One commit is one append (section 6.1.2: checkpoints that mimic a log). The append is conditional on the journal's
sequencer and commit number. If two processes both act as the owner of an interval, only the one with the newest
sequencer can write (section 6.2).

State rows are written later, and only from committed entries. Each row carries the commit number of its entry. Of two
writes of one row, the one with the larger commit number stays, in any order of arrival.

Every implementation passes the same test suite, ``tests/contracts/test_store_contract.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from millwheel.errors import CorruptValueError, StoreError
from millwheel.model.incarnation import IncarnationId

__all__ = [
    "TERMINAL_SEQUENCER",
    "Append",
    "AppendQueue",
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
"""The sequencer of a sealed journal. An owner's sequencer is always smaller, so no append to the journal succeeds."""


class StoreUnavailableError(StoreError):
    """The outcome of the write or read is unknown. The caller can repeat it with identical bytes."""


class StoreInUseError(StoreError):
    """Another process has locked the store's directory. The directory is free again when that process ends."""


class StoreConflictError(StoreError):
    """The directory contains something that is not a store of this format. Nothing in it was changed."""


class JournalMissingError(StoreError):
    """The journal was never created, or was dropped. Callers must not treat it as an empty journal."""


class JournalExistsError(StoreError):
    """``create_journal`` found a journal with the same name."""


class SequencerRefusedError(StoreError):
    """The call lost to a newer state: the journal is at ``sequencer`` and ``commit``."""

    def __init__(self, journal: str, sequencer: int, commit: int) -> None:
        super().__init__(f"journal {journal} is held by sequencer {sequencer} at commit {commit}")
        self.journal = journal
        self.sequencer = sequencer
        self.commit = commit


@dataclass(frozen=True, slots=True, order=True)
class PartId:
    """The id of one part of a journal's base, or of a large entry: its content's name, its writer and its commit.

    The writer's sequencer is part of the id. So a deposed owner cannot overwrite a part that its successor's committed
    list names.
    """

    name: str
    sequencer: int
    commit: int


@dataclass(frozen=True, slots=True)
class JournalHead:
    """A journal's head: the values that the journal has once.

    A takeover reads exactly the entries ``truncation_point + 1 .. commit`` and ``parts``. ``truncation_point``:
    entries up to it are no longer needed. ``parts`` names the parts of the base, and the parts of entries that are too
    large for one append.
    """

    sequencer: int
    commit: int
    truncation_point: int
    parts: tuple[PartId, ...]


@dataclass(frozen=True, slots=True)
class Append:
    """One group commit: entry ``commit`` of the journal, written only if the journal is at ``commit - 1``.

    The same atomic write replaces the head's ``truncation_point`` and ``parts``. All parts that it names
    were acknowledged before. With ``sync`` False the store may acknowledge before the write is on disk. This is for
    computations that have both exactly-once and strong productions switched off. With ``deflate`` the store may
    deflate the entry: each process of the cluster can read that.
    """

    sequencer: int
    commit: int
    truncation_point: int
    parts: tuple[PartId, ...]
    entry: bytes
    sync: bool = True
    deflate: bool = False


class StateRow(msgspec.Struct, frozen=True, gc=False):
    """Everything that is stored for one key, as commit ``commit`` left it.

    An empty blob means that the key has no state. Such a row is written, but reads treat it as absent. It is a Struct,
    because many are made at once, and a frozen dataclass takes ten times as long to make.
    """

    key: bytes
    commit: int
    blob: bytes


class StateStore(Protocol):
    """The contract. Journals and state rows are kept under ids that are never used twice.

    It has many methods: journals, parts, state rows and packages are in one store, which commits them.
    """

    async def create_journal(self, journal: str, commit: int = 0) -> None:
        """Create a journal without entries: sequencer 0, commit and truncation point ``commit``.

        The child of a split or merge starts at its parents' largest sealed commit. So the commit numbers of a key's
        rows also grow across splits and merges. ``write_states`` relies on this.

        Raises:
            JournalExistsError: if a journal of this name exists.
        """

    async def fence(self, journal: str, sequencer: int) -> JournalHead:
        """Make ``sequencer`` the journal's sequencer, durably, and return the resulting head (section 6.2).

        Afterwards no append by an older sequencer succeeds.

        A repetition after StoreUnavailableError may be refused with the caller's own sequencer. Then the first attempt
        took effect, because each sequencer opens a journal only once, for one process.

        Raises:
            SequencerRefusedError: unless ``sequencer`` is larger than the journal's sequencer.
            JournalMissingError: if there is no such journal.
        """

    async def seal(self, journal: str, sequencer: int) -> JournalHead:
        """End the journal for good, on behalf of a successor with ``sequencer``, durably. Return the final head.

        The journal's sequencer becomes ``TERMINAL_SEQUENCER``. A journal that is already sealed does not change. So the
        successors (the children of a split, each with its own sequencer) may all seal, repeatedly and in any order.
        All of them get the same last commit.

        Raises:
            SequencerRefusedError: if the journal's sequencer is larger: the caller is older than the journal's owner.
        """

    async def read_head(self, journal: str) -> JournalHead:
        """Return the head without fencing. For inspection."""

    async def append(self, journal: str, append: Append) -> None:
        """Append one entry, atomically. This is the commit point (G2, G3).

        A repetition after StoreUnavailableError may be refused with the caller's own sequencer and commit. Then the
        first attempt took effect.

        Raises:
            SequencerRefusedError: unless the journal is at exactly ``append.sequencer`` and ``append.commit - 1``.
                Then nothing is written.
        """

    async def read_entries(self, journal: str, first: int, last: int) -> list[bytes]:
        """Return entries ``first .. last`` in order; CorruptValueError if one of them is missing or damaged."""

    async def delete_entries(self, journal: str, below: int) -> None:
        """Delete entries with commit numbers below ``below``, which is at most the committed truncation point + 1."""

    async def write_part(self, journal: str, part: PartId, blob: bytes) -> None:
        """Store a part durably. A takeover reads the part only if an append has named it."""

    async def read_parts(self, journal: str, parts: Sequence[PartId]) -> list[bytes]:
        """Return the blobs of ``parts``, in the same order; CorruptValueError if one is missing or damaged."""

    async def list_parts(self, journal: str) -> list[PartId]:
        """Return every stored part, whether the head names it or not. For garbage collection."""

    async def delete_parts(self, journal: str, parts: Sequence[PartId]) -> None:
        """Delete parts that the committed head does not name."""

    async def write_states(
        self, incarnation: IncarnationId, journal: str, sequencer: int, rows: Sequence[StateRow]
    ) -> None:
        """Write rows from committed entries of ``journal``, durably.

        Invariant: a row never replaces a row with a larger commit number. This holds within one call and across calls,
        owners and restarts.

        If ``sequencer`` is no longer the journal's sequencer, a store may drop the call, or the rest of it, without an
        error. The successor replays the same entries and writes the same rows. A store may refuse rows ahead of the
        journal's commit (StoreError). A store may delete an emptied row once the journal's truncation point passes it.
        """

    async def read_states(self, incarnation: IncarnationId, keys: Sequence[bytes]) -> list[StateRow | None]:
        """Return the rows of ``keys``, in the same order; None for a key that has no row or an empty one."""

    async def list_states(self, incarnation: IncarnationId, start: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Return the first ``limit`` keys of rows from ``start`` to below ``end`` (None: to the last), in order.

        An emptied row that is not deleted yet may be among them. For inspection.
        """

    async def drop_journal(self, journal: str) -> None:
        """Delete the journal with all its entries and parts. Does nothing if the journal does not exist."""

    async def drop_incarnation(self, incarnation: IncarnationId) -> None:
        """Delete all state rows of an incarnation."""

    async def close(self) -> None:
        """Release all resources. Outstanding calls fail with StoreUnavailableError."""


class AppendQueue(Protocol):
    """Appends that need no coroutine, which some stores have in addition. A store over a network has none."""

    def append_soon(
        self,
        journal: str,
        append: Append,
        done: Callable[[BaseException | None], None],
        soon: Callable[[Callable[[], None]], object],
        /,
    ) -> None:
        """Do what :meth:`StateStore.append` does, soon, in the order of all calls.

        ``done`` may have the result before the entry is on the disk. But what is written later is on the disk only if
        the entry is, too. So later writes of this process may depend on it. What leaves the process must wait
        (:meth:`after_sync`).

        Args:
            journal: The journal.
            append: The entry.
            done: Gets what ``append`` would raise, or None. It runs on the caller's event loop, and must not raise.
            soon: Lets the event loop run a call soon, after what is ready now.
        """

    def after_sync(self, call: Callable[[], None], /) -> None:
        """Run ``call`` when the entries of all results so far are on the disk: at once, or later, in the calls' order.

        If the process ends before that, ``call`` does not run.
        """
