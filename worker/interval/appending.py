"""The append of an entry of any size. An entry too large for one append is first written in parts (6.1.2; G2)."""

from __future__ import annotations

from typing import Final

from millwheel.store.contract import Append, PartId
from millwheel.worker.interval.checkpoint import Checkpointer
from millwheel.worker.interval.divided import divide
from millwheel.worker.interval.parts import PART_BYTES
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import AppendEntry, IntervalEffect, WriteParts

__all__ = ["EntryWriter"]

_FIRST_ENTRY_NUMBER: Final = 1 << 42
"""PartsWritten numbers of entries start here, to be distinct from those of checkpoints, id segments and copies."""


class EntryWriter:
    """Writes one entry at a time into the interval's journal.

    Invariant: an append starts only after every part that it names is acknowledged. An owner that is deposed in between
    leaves parts that no head names. The next owner deletes them.
    """

    def __init__(self, state: IntervalState, checkpoints: Checkpointer) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self._waiting: tuple[int, int, bytes, tuple[PartId, ...]] | None = None
        """The entry whose parts are being written: their number, its commit, the small entry to append, their ids."""

    def write(self, commit: int, entry: bytes) -> list[IntervalEffect]:
        """Append ``entry`` to the journal, or first write its parts if it is too large for one append."""
        state, config = self._state, self._state.config
        if len(entry) <= state.settings.entry_bytes:
            return [self._append(commit, entry)]
        most = min(state.settings.entry_bytes, PART_BYTES)
        small, parts = divide(entry, config.sequencer, commit, most)
        number = _FIRST_ENTRY_NUMBER + commit
        self._waiting = number, commit, small, tuple(parts)
        return [WriteParts(config.journal, number, parts)]

    def parts_written(self, number: int) -> list[IntervalEffect]:
        """Parts are acknowledged. If they belong to the waiting entry, append it."""
        if self._waiting is None or self._waiting[0] != number:
            return []
        _, commit, small, parts = self._waiting
        self._waiting = None
        self._state.entry_parts[commit] = parts
        return [self._append(commit, small)]

    def _append(self, commit: int, entry: bytes) -> AppendEntry:
        state, config, options = self._state, self._state.config, self._state.program.options
        floor, parts = self._checkpoints.floor_and_parts()
        if state.entry_parts:
            needed = (each for number, each in state.entry_parts.items() if number > floor)
            parts = sum(needed, parts)
        sync = options.exactly_once or options.strong
        return AppendEntry(config.journal, Append(config.sequencer, commit, floor, parts, entry, sync))
