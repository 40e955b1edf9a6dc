"""The content of the authority's journals, read by the simulator's own code: accepted members and decided values.

The book reads each entry as it is appended, from the first one on. So a shard that starts from a base is compared with
everything that its journal ever said (G4, G7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from millwheel.authority.core import AuthorityCore
from millwheel.authority.injected import InjectorGroup
from millwheel.authority.journal import (
    AcceptKeys,
    AcceptProcess,
    AuthorityEntry,
    Change,
    Expect,
    KeysRow,
    Part,
    Percentile,
    ProcessRow,
    Remove,
)
from millwheel.authority.registry import AnyGroup
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["ShardBook", "injector_name"]

Stretch = tuple[bytes, bytes | None, int, int]
"""First key, end, sequencer, watermark."""


def injector_name(group: str) -> bool:
    """Whether the name stands for a stream's injectors."""
    return group.startswith("injector/")


@dataclass(slots=True)
class _Group:
    """One group of a shard."""

    value: int = MIN_TIMESTAMP
    stretches: list[Stretch] = field(default_factory=lambda: [(b"", None, 0, int(MIN_TIMESTAMP))])
    """In key order, without gaps."""
    processes: dict[str, tuple[int, int, bool, int]] = field(default_factory=dict)
    """Sequencer, watermark, whether it is idle, and the number of its last effective report."""
    expected: frozenset[str] = frozenset()
    expected_as_of: int = 0
    percentiles: dict[int, int] = field(default_factory=dict)
    base_keys: list[KeysRow] = field(default_factory=list)
    base_processes: dict[str, ProcessRow] = field(default_factory=dict)
    """The content of the base.

    The shard continues while a base is written, so a report may be in the base and in no entry.
    """

    def newest(self, stretch: Stretch) -> Stretch:
        """The stretch, with the base's watermark for it if that is larger."""
        start, end, sequencer, watermark = stretch
        for row in self.base_keys:
            within = row.start <= start and (row.end is None or (end is not None and end <= row.end))
            if within and row.sequencer == sequencer:
                watermark = max(watermark, row.watermark)
        return start, end, sequencer, watermark

    def paint(self, row: KeysRow) -> None:
        """Set the sequencer and watermark of a row's keys.

        Stretches that it cuts keep their own values outside of the row.
        """
        kept: list[Stretch] = []
        for start, end, sequencer, watermark in self.stretches:
            if start < row.start:
                left = row.start if end is None or row.start < end else end
                kept.append((start, left, sequencer, watermark))
            if row.end is not None and (end is None or row.end < end):
                kept.append((max(start, row.end), end, sequencer, watermark))
        self.stretches = sorted([*kept, (row.start, row.end, row.sequencer, row.watermark)], key=lambda one: one[0])


class ShardBook:
    """One shard's journal."""

    def __init__(self) -> None:
        self.groups: dict[str, _Group] = {}
        self.removed: set[str] = set()
        self.ended: dict[str, int] = {}
        self.accepted: set[tuple[str, Any, int]] = set()
        """Every acceptance that was ever journaled: group, first key and end (or process), sequencer."""
        self.last_report: dict[tuple[str, str, int], int] = {}
        """By stream, process and sequencer: the number of the last report that was ever journaled."""
        self.finished: set[tuple[str, str]] = set()
        """Stream and process, for each end that was journaled in the stream's current incarnation."""

    def take(self, entry: AuthorityEntry) -> None:
        """Apply an entry."""
        for change in entry.changes:
            self._change(change)
        for name, rows in entry.keys.items():
            for row in rows:
                self._of(name).paint(row)
        for name, processes in entry.processes.items():
            for process in processes:
                self._process(name, process)
        for name, value in entry.values.items():
            self._of(name).value = max(value, self._of(name).value)

    def rely_on(self, parts: Iterable[Part]) -> None:
        """Use these parts as the base from now on."""
        for one in self.groups.values():
            one.base_keys, one.base_processes = [], {}
        for part in parts:
            if (mine := self.groups.get(part.group)) is not None:
                mine.base_keys += part.keys
                mine.base_processes |= {row.process: row for row in part.processes}

    def _of(self, name: str) -> _Group:
        return self.groups.setdefault(name, _Group())

    def _change(self, change: Change) -> None:
        name = change.group
        if isinstance(change, AcceptKeys):
            self.accepted.add((name, (change.row.start, change.row.end), change.row.sequencer))
            self._of(name).paint(change.row)
        elif isinstance(change, AcceptProcess):
            self.accepted.add((name, change.row.process, change.row.sequencer))
            self._process(name, change.row)
        elif isinstance(change, Remove):
            self.groups.pop(name, None)
            self.finished = {one for one in self.finished if one[0] != name}
            if not injector_name(name):
                self.removed.add(name)
            elif change.up_to:
                self.ended[name] = max(change.up_to, self.ended.get(name, 0))
        elif isinstance(change, Expect):
            self._expect(self._of(name), change)
        else:
            assert isinstance(change, Percentile)
            decided = self._of(name).percentiles
            decided[change.basis_points] = max(change.watermark, decided.get(change.basis_points, change.watermark))

    def _process(self, name: str, row: Any) -> None:
        self._of(name).processes[row.process] = row.sequencer, row.watermark, row.idle, row.last_report
        place = name, row.process, row.sequencer
        self.last_report[place] = max(row.last_report, self.last_report.get(place, 0))
        if row.watermark == MAX_TIMESTAMP:
            self.finished.add((name, row.process))

    @staticmethod
    def _expect(mine: _Group, change: Expect) -> None:
        if 0 < change.as_of < mine.expected_as_of:
            return
        mine.expected, mine.expected_as_of = frozenset(change.processes), max(change.as_of, mine.expected_as_of)
        if mine.expected:
            mine.processes = {name: one for name, one in mine.processes.items() if name in mine.expected}

    def differences(self, core: AuthorityCore) -> Iterator[str]:
        """The differences between a shard that was just recovered and its journal."""
        registry = core.registry
        names = {one.name for one in registry}
        if names != self.groups.keys():
            yield f"groups {sorted(names)} in memory, {sorted(self.groups)} in the journal (G4)"
        if (set(registry.removed), registry.ended) != (self.removed, self.ended):
            ends = f"{sorted(self.removed)}, {self.ended} in the journal (G4)"
            yield f"removed are {sorted(registry.removed)}, {registry.ended} in memory, {ends}"
        for found in registry:
            if (mine := self.groups.get(found.name)) is not None:
                yield from _group_differences(found, mine, core.broadcast(found.name))


def _group_differences(found: AnyGroup, mine: _Group, broadcast: int) -> Iterator[str]:
    name = found.name
    if broadcast != mine.value or found.value < mine.value:
        yield f"{name} is broadcast at {broadcast}, decided at {found.value}, and journaled at {mine.value} (G7)"
    if found.percentiles != mine.percentiles:
        yield f"percentiles of {name} are {found.percentiles} in memory, {mine.percentiles} in the journal (G7)"
    if isinstance(found, InjectorGroup):
        states = {
            state.member: (state.sequencer, state.watermark, state.idle, state.last_report) for state in found.states()
        }
        wrong = states.keys() ^ mine.processes.keys()
        if wrong or not all(_is_of(mine, member, state) for member, state in states.items()):
            yield f"processes of {name} are {states} in memory, {mine.processes} in the journal (G4)"
        if (found.expected, found.expected_as_of) != (mine.expected, mine.expected_as_of):
            yield f"{name} expects {sorted(found.expected)} in memory, {sorted(mine.expected)} in the journal (G7)"
        return
    stretches = [(one.member.start, one.member.end, one.sequencer, one.watermark) for one in found.states()]
    known = [{one, mine.newest(one)} for one in mine.stretches]
    if len(stretches) != len(known) or not all(one in these for one, these in zip(stretches, known, strict=True)):
        yield f"keys of {name} are {stretches} in memory, {mine.stretches} in the journal (G4)"


def _is_of(mine: _Group, process: str, state: tuple[int, int, bool, int]) -> bool:
    """Whether a process is as in the entries, or as in the base, which may contain a newer report."""
    sequencer, watermark, idle, last_report = mine.processes[process]
    # A report that changes nothing is in no entry, but its number may be in a base.
    if state == (sequencer, watermark, idle, max(last_report, state[3])):
        return True
    row = mine.base_processes.get(process)
    newer = row is not None and row.sequencer == sequencer and row.last_report >= last_report
    return row is not None and newer and state == (sequencer, row.watermark, row.idle, row.last_report)
