"""All computations of one shard by name, and how journaled changes take effect on them (7.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from millwheel.authority.injected import InjectorComputation
from millwheel.authority.journal import AcceptKeys, AcceptProcess, Change, Entry, Expect, Part, Percentile, Remove
from millwheel.authority.keyed import KeyedComputation
from millwheel.authority.shares import Share, process_share
from millwheel.core.keys import KeyInterval
from millwheel.core.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import is_injector

__all__ = ["AnyComputation", "Registry"]

AnyComputation = KeyedComputation | InjectorComputation

MOST_REMEMBERED: Final = 10_000
"""Removed incarnations, and streams that had earlier lives, that are remembered: the last ones."""

_OTHERS: Final = ""
"""In place of a name: injectors that are not remembered one by one any more. No injector has an empty name."""


class Registry:
    """The computations, and what is remembered of those removed.

    ``removed``: incarnation ids are never used twice, so whoever still speaks for one of these is a remnant. One that
    was paused for longer than it is remembered brings back what nobody listens to.
    ``ended``: an injector's name is its stream's and may come back; up to this sequencer whoever speaks for it is
    a remnant of an earlier life. For those remembered no more it is the largest of them all: new processes have larger
    ones.
    """

    def __init__(self) -> None:
        self._computations: dict[str, AnyComputation] = {}
        self.removed: dict[str, None] = {}
        self.ended: dict[str, int] = {}

    def __iter__(self) -> Iterator[AnyComputation]:
        return iter(list(self._computations.values()))

    def __len__(self) -> int:
        return len(self._computations)

    def get(self, name: str) -> AnyComputation | None:
        """The computation, if anything was ever accepted for it."""
        return self._computations.get(name)

    def keyed(self, name: str) -> KeyedComputation:
        """The computation, made if need be; its members are intervals."""
        found = self._computations.get(name)
        if found is None:
            found = self._computations[name] = KeyedComputation(name)
        assert isinstance(found, KeyedComputation)
        return found

    def injector(self, name: str) -> InjectorComputation:
        """The injector, made if need be; its members are processes."""
        found = self._computations.get(name)
        if found is None:
            found = self._computations[name] = InjectorComputation(name)
        assert isinstance(found, InjectorComputation)
        return found

    def is_over(self, name: str, sequencer: int) -> bool:
        """Whether ``sequencer`` speaks for a life of ``name`` that was removed."""
        if name in self.removed or sequencer <= self.ended.get(name, 0):
            return True
        if not is_injector(name) or sequencer > self.ended.get(_OTHERS, 0):
            return False
        found = self._computations.get(name)
        return found is None or all(share.sequencer != sequencer for share in found.shares())

    def remove(self, name: str, up_to: int = 0) -> None:
        """Forget a computation: an incarnation for good, an injector's lives as far as sequencer ``up_to``."""
        self._computations.pop(name, None)
        if not is_injector(name):
            self.removed[name] = None
        elif up_to:
            self.ended[name] = max(up_to, self.ended.pop(name, 0))
        while len(self.removed) > MOST_REMEMBERED:
            del self.removed[next(iter(self.removed))]
        while len(self.ended) > MOST_REMEMBERED:
            oldest = next(one for one in self.ended if one != _OTHERS)
            self.ended[_OTHERS] = max(self.ended.pop(oldest), self.ended.get(_OTHERS, 0))

    def load(self, parts: Iterable[Part]) -> None:
        """Take a whole base: its parts, in any order."""
        pieces: dict[str, list[Part]] = {}
        for part in parts:
            self.removed.update(dict.fromkeys(part.removed))
            self.ended.update(part.ended)
            if part.computation:
                pieces.setdefault(part.computation, []).append(part)
        for name, found in pieces.items():
            made = self._computations[name] = _injector(name, found) if is_injector(name) else _keyed(name, found)
            made.percentiles.update(found[0].percentiles)

    def replay(self, entry: Entry) -> None:
        """Take one journaled entry. Replaying an entry that the base knows already changes nothing for the worse."""
        for change in entry.changes:
            self._change(change)
        for name, rows in entry.keys.items():
            for row in rows:
                self.keyed(name).restore(KeyInterval(row.start, row.end), row.sequencer, row.watermark)
        for name, processes in entry.processes.items():
            for process in processes:
                self.injector(name).put(process_share(process))
        for name, value in entry.values.items():
            computation = self._computations[name]
            computation.value = max(computation.value, value)

    def _change(self, change: Change) -> None:
        if isinstance(change, AcceptKeys):
            keys = change.row
            self.keyed(change.computation).put(Share(KeyInterval(keys.start, keys.end), keys.sequencer, keys.watermark))
        elif isinstance(change, AcceptProcess):
            self.injector(change.computation).put(process_share(change.row))
        elif isinstance(change, Expect):
            self.injector(change.computation).expect(change.processes, change.as_of)
        elif isinstance(change, Percentile):
            percentiles = self._computations[change.computation].percentiles
            percentiles[change.basis_points] = max(
                change.watermark, percentiles.get(change.basis_points, change.watermark)
            )
        else:
            assert isinstance(change, Remove)
            self.remove(change.computation, change.up_to)


def _keyed(name: str, parts: list[Part]) -> KeyedComputation:
    rows = [row for part in parts for row in part.keys]
    shares = [Share(KeyInterval(row.start, row.end), row.sequencer, row.watermark) for row in rows]
    return KeyedComputation(name, max((part.value for part in parts), default=MIN_TIMESTAMP), shares)


def _injector(name: str, parts: list[Part]) -> InjectorComputation:
    shares = [process_share(row) for part in parts for row in part.processes]
    first = parts[0]
    value = max(part.value for part in parts)
    return InjectorComputation(name, value, shares, first.expected, first.expected_as_of)
