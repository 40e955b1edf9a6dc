"""What a journal says of its keys, for readers that own nothing: of a snapshot, for example (sections 4.4, 6.2).

It applies the base and the entries as a takeover does (``recovery.py``), and needs neither the user's code nor the
interval's settings. What belongs to no single key is left out: ids, productions, watermarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from millwheel.model.page_keys import is_page_key
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import DEDUP_PART
from millwheel.worker.id_segments import SEGMENT_PART
from millwheel.worker.interval.commits.base_parts import (
    HOLDS_PART,
    INHERITED_PART,
    META_PART,
    OUTBOX_PART,
    PANES_PART,
    TIMERS_PART,
    VOIDS_PART,
)
from millwheel.worker.interval.commits.divided import ENTRY_PART
from millwheel.worker.interval.entry import IntervalEntry, TimerRow, VoidRow, decode_part
from millwheel.worker.interval.panes.changes import PaneChange, apply_changes
from millwheel.worker.interval.panes.table import PaneTable
from millwheel.worker.interval.spilled_timers import SPILLED_PART, is_spilled

__all__ = ["SavedKeys"]

_OF_NO_KEY: Final = frozenset(
    {META_PART, OUTBOX_PART, INHERITED_PART, DEDUP_PART, SEGMENT_PART, ENTRY_PART, SPILLED_PART}
)
"""The kinds of parts without a value of a key. Of spilled timers, the rows have all that their index has."""

_Name = tuple[bool, str]
"""Whether a timer is in processing time, and its tag."""


class SavedKeys:
    """States that changed above the truncation point, and all timers, holds and panes of one journal.

    Invariant: after the base and the entries up to a commit, a key's state is that in ``states``, or that of its row if
    it is not there. All else is here alone. Pages of growing states are left out: they are no keys. Who may break it: a
    kind of part or entry that has values of keys, and that only ``recovery.py`` reads.
    """

    def __init__(self, parts: Mapping[PartId, bytes], where: str) -> None:
        """
        Args:
            parts: The parts that the journal's head names.
            where: What an error names.

        Raises:
            CorruptValueError: A part cannot be read.
        """
        self.states: dict[bytes, bytes] = {}
        """Empty bytes: the key has no state."""
        self.holds: dict[bytes, int] = {}
        self.timers: dict[bytes, dict[_Name, TimerRow]] = {}
        self.panes = PaneTable()
        self._where = where
        near: list[TimerRow] = []
        spilled: list[TimerRow] = []
        voids: dict[tuple[bytes, bool, str], int] = {}
        for part, blob in parts.items():
            kind, named = part.name.partition("/")[0], f"{where}, base part {part.name}"
            if kind == HOLDS_PART:
                self.holds.update(decode_part(blob, list[tuple[bytes, int]], named))
            elif kind == TIMERS_PART:
                near += decode_part(blob, list[TimerRow], named)
            elif is_spilled([part]):
                spilled += decode_part(blob, list[TimerRow], named)
            elif kind == VOIDS_PART:
                voids.update(((row[0], row[1], row[2]), row[3]) for row in decode_part(blob, list[VoidRow], named))
            elif kind == PANES_PART:
                apply_changes(self.panes, decode_part(blob, list[PaneChange], named), named)
            elif kind not in _OF_NO_KEY:
                raise CorruptValueError(named, "a part of a kind that this version does not know")
        # A timer in memory replaces its spilled copies, and a tombstone deletes those below its position.
        self._set_timers(row for row in spilled if row[6] >= voids.get(row[:3], row[6]))
        self._set_timers(near)

    def apply(self, entry: IntervalEntry) -> None:
        """Apply the next entry.

        Raises:
            CorruptValueError: It contradicts what is before it.
        """
        self.states.update(row for row in entry.states if not is_page_key(row[0]))
        for key, hold in entry.holds:
            if hold is None:
                self.holds.pop(key, None)
            else:
                self.holds[key] = hold
        for key, processing, tag in entry.timers_cleared:
            of_key = self.timers.get(key, {})
            if of_key.pop((processing, tag), None) is not None and not of_key:
                del self.timers[key]
        self._set_timers(entry.timers_set)
        apply_changes(self.panes, entry.panes, self._where)

    def _set_timers(self, rows: Iterable[TimerRow]) -> None:
        for row in rows:
            of_key, name = self.timers.setdefault(row[0], {}), (row[1], row[2])
            known = of_key.get(name)
            if known is None or known[6] <= row[6]:
                of_key[name] = row

    def all_keys(self) -> set[bytes]:
        """The keys that this journal has something of, beside their rows."""
        found = {*self.states, *self.holds, *self.timers}
        for window in self.panes.windows.values():
            found.update(window.settled())
        return found
