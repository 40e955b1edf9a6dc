"""Reads the journals of a snapshot as a takeover does, under other names.

With the same names, it only checks that a takeover could read them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import msgspec

from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.files import PartItem, read_items
from millwheel.snapshots.location import SnapshotFolder
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import DedupError
from millwheel.worker.interval.commits.divided import is_entry_part
from millwheel.worker.interval.renaming import renamed_entry, renamed_part
from millwheel.worker.log.renaming import renamed_log_entry, renamed_log_part
from millwheel.worker.names import RestoredNames

__all__ = ["RenamedEntry", "RenamedJournal", "damaged_snapshot"]


@dataclass(frozen=True, slots=True)
class RenamedEntry:
    """A journal entry, and its parts if it is divided."""

    commit: int
    blob: bytes
    parts: dict[PartId, bytes] = field(default_factory=dict)


class RenamedJournal:
    """One journal of a snapshot: first read all ``parts``, then the ``entries``."""

    def __init__(
        self, folder: SnapshotFolder, journal: wire.SnapshotJournal, is_log: bool, names: RestoredNames
    ) -> None:
        self._folder = folder
        self._journal = journal
        self._is_log = is_log
        self._names = names.of_journal()
        self._divided: dict[PartId, bytes] = {}
        self._where = f"{folder.where}, journal {journal.journal}"
        self.log_end = 0
        """Where the log ends by what was read so far, if it is a log's journal."""

    async def parts(self) -> AsyncIterator[tuple[PartId, bytes]]:
        """The parts of the base.

        Raises:
            RequestError: A takeover could not read one.
        """
        async for one in read_items(self._folder, self._journal.parts, PartItem):
            part = PartId(one.name, one.sequencer, one.commit)
            if is_entry_part(part):
                self._divided[part] = one.blob
                continue
            where = f"{self._where}, base part {one.name}"
            try:
                yield part, self._renamed_part(part, one.blob, where)
            except (CorruptValueError, DedupError, msgspec.MsgspecError) as error:
                raise damaged_snapshot(where, error) from error

    def _renamed_part(self, part: PartId, blob: bytes, where: str) -> bytes:
        if not self._is_log:
            return renamed_part(part, blob, self._names, where)
        renamed, end = renamed_log_part(part, blob, self._names, where)
        self.log_end = max(self.log_end, end)
        return renamed

    async def entries(self, sequencer: int) -> AsyncIterator[RenamedEntry]:
        """The entries above the truncation point. ``sequencer``: the writer of their parts.

        Raises:
            RequestError: A takeover could not read one, or one is missing.
        """
        commit = self._journal.truncation_point
        async for blob in read_items(self._folder, self._journal.entries, bytes):
            commit += 1
            where = f"{self._where}, entry {commit}"
            try:
                if self._is_log:
                    entry, self.log_end = renamed_log_entry(blob, self._names, where)
                    yield RenamedEntry(commit, entry)
                else:
                    entry, parts = renamed_entry(blob, commit, self._divided, self._names, where, sequencer)
                    yield RenamedEntry(commit, entry, parts)
            except (CorruptValueError, DedupError, msgspec.MsgspecError) as error:
                raise damaged_snapshot(where, error) from error
        if commit != self._journal.commit:
            raise damaged_snapshot(self._where, f"its last entry is {commit}, and {self._journal.commit} is needed")


def damaged_snapshot(where: str, why: object) -> RequestError:
    """The error for a snapshot that cannot be read. ``why`` may name ``where`` already."""
    text = str(why) if str(why).startswith(where) else f"{where}: {why}"
    return RequestError(FailureCode.DATA_LOSS, text, "use another snapshot", reason="SNAPSHOT_DAMAGED")
