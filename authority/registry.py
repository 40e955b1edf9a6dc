"""All groups of one shard by name, and the effect of journaled changes on them (7.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from millwheel.authority.injected import InjectorGroup
from millwheel.authority.journal import (
    AcceptKeys,
    AcceptProcess,
    AuthorityEntry,
    Change,
    Expect,
    Part,
    Percentile,
    Remove,
)
from millwheel.authority.keyed import KeyedGroup
from millwheel.authority.members import MemberState, process_state
from millwheel.model.incarnation import is_injector
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import Member

__all__ = ["AnyGroup", "Registry"]

AnyGroup = KeyedGroup | InjectorGroup

MAX_REMEMBERED: Final = 10_000
"""The maximum number of remembered removed incarnations, and of remembered streams that had earlier incarnations.

The oldest are forgotten first.
"""

_OTHERS: Final = ""
"""The key in ``ended`` for all injectors that are no longer remembered one by one. No injector has an empty name."""


class Registry:
    """The groups of the shard, and the record of removed ones.

    ``removed``: removed incarnation ids. An id is never reused, so an owner that still reports for one of them is a
    remnant. A remnant paused for so long that its id is forgotten re-creates a group that no process watches.

    ``ended``: an injector is named after its stream, and the name may be re-created. This maps the name to the
    largest sequencer of its removed incarnations; an owner with a sequencer up to it is a remnant. Injectors that are
    no longer remembered share one bound, the largest of theirs. New processes have larger sequencers.
    """

    def __init__(self) -> None:
        self._groups: dict[str, AnyGroup] = {}
        self.removed: dict[str, None] = {}
        self.ended: dict[str, int] = {}

    def __iter__(self) -> Iterator[AnyGroup]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, name: str) -> AnyGroup | None:
        """Return the group, if a sequencer was ever accepted for it."""
        return self._groups.get(name)

    def knows(self, name: str, member: Member, sequencer: int) -> bool:
        """Return whether the group exists, and a process has exactly this sequencer. A group covers all intervals."""
        found = self._groups.get(name)
        if isinstance(found, InjectorGroup):
            return isinstance(member, str) and found.sequencer_of(member) == sequencer
        return found is not None

    def keyed(self, name: str) -> KeyedGroup:
        """Return the group, which is created if it is missing. Its members are intervals."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = KeyedGroup(name)
        assert isinstance(found, KeyedGroup)
        return found

    def injector(self, name: str) -> InjectorGroup:
        """Return the injector, which is created if it is missing. Its members are processes."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = InjectorGroup(name)
        assert isinstance(found, InjectorGroup)
        return found

    def is_over(self, name: str, sequencer: int) -> bool:
        """Return whether ``sequencer`` belongs to a removed incarnation of ``name``."""
        if name in self.removed or sequencer <= self.ended.get(name, 0):
            return True
        if not is_injector(name) or sequencer > self.ended.get(_OTHERS, 0):
            return False
        found = self._groups.get(name)
        return found is None or all(state.sequencer != sequencer for state in found.states())

    def remove(self, name: str, up_to: int = 0) -> None:
        """Forget a group: an incarnation for ever, an injector's incarnations up to sequencer ``up_to``."""
        self._groups.pop(name, None)
        if not is_injector(name):
            self.removed[name] = None
        elif up_to:
            self.ended[name] = max(up_to, self.ended.pop(name, 0))
        while len(self.removed) > MAX_REMEMBERED:
            del self.removed[next(iter(self.removed))]
        while len(self.ended) > MAX_REMEMBERED:
            oldest = next(one for one in self.ended if one != _OTHERS)
            self.ended[_OTHERS] = max(self.ended.pop(oldest), self.ended.get(_OTHERS, 0))

    def load(self, parts: Iterable[Part]) -> None:
        """Load a whole base from its parts, in any order."""
        pieces: dict[str, list[Part]] = {}
        for part in parts:
            self.removed.update(dict.fromkeys(part.removed))
            self.ended.update(part.ended)
            if part.group:
                pieces.setdefault(part.group, []).append(part)
        for name, found in pieces.items():
            made = self._groups[name] = _injector(name, found) if is_injector(name) else _keyed(name, found)
            made.percentiles.update(found[0].percentiles)

    def replay(self, entry: AuthorityEntry) -> None:
        """Apply one journaled entry. Replay of an entry that the base already includes never lowers a value."""
        for change in entry.changes:
            self._change(change)
        for name, rows in entry.keys.items():
            for row in rows:
                self.keyed(name).restore(KeyInterval(row.start, row.end), row.sequencer, row.watermark)
        for name, processes in entry.processes.items():
            for process in processes:
                self.injector(name).put(process_state(process))
        for name, value in entry.values.items():
            group = self._groups[name]
            group.value = max(group.value, value)

    def _change(self, change: Change) -> None:
        if isinstance(change, AcceptKeys):
            keys = change.row
            self.keyed(change.group).put(MemberState(KeyInterval(keys.start, keys.end), keys.sequencer, keys.watermark))
        elif isinstance(change, AcceptProcess):
            self.injector(change.group).put(process_state(change.row))
        elif isinstance(change, Expect):
            self.injector(change.group).expect(change.processes, change.as_of)
        elif isinstance(change, Percentile):
            percentiles = self._groups[change.group].percentiles
            percentiles[change.basis_points] = max(
                change.watermark, percentiles.get(change.basis_points, change.watermark)
            )
        else:
            assert isinstance(change, Remove)
            self.remove(change.group, change.up_to)


def _keyed(name: str, parts: list[Part]) -> KeyedGroup:
    rows = [row for part in parts for row in part.keys]
    states = [MemberState(KeyInterval(row.start, row.end), row.sequencer, row.watermark) for row in rows]
    return KeyedGroup(name, max((part.value for part in parts), default=MIN_TIMESTAMP), states)


def _injector(name: str, parts: list[Part]) -> InjectorGroup:
    states = [process_state(row) for part in parts for row in part.processes]
    first = parts[0]
    value = max(part.value for part in parts)
    return InjectorGroup(name, value, states, first.expected, first.expected_as_of)
