"""All computations of one shard by name, and the effect of journaled changes on them (7.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from millwheel.authority.injected import InjectorComputation
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
from millwheel.authority.keyed import KeyedComputation
from millwheel.authority.shares import Share, process_share
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.rpc.watermarks import is_injector

__all__ = ["AnyComputation", "Registry"]

AnyComputation = KeyedComputation | InjectorComputation

MAX_REMEMBERED: Final = 10_000
"""The maximum number of remembered removed incarnations, and of remembered streams that had earlier incarnations.

The oldest are forgotten first.
"""

_OTHERS: Final = ""
"""The key in ``ended`` for all injectors that are no longer remembered one by one. No injector has an empty name."""


class Registry:
    """The computations of the shard, and the record of removed ones.

    ``removed``: removed incarnation ids. An id is never reused, so an owner that still reports for one of them is a
    remnant. A remnant paused for so long that its id is forgotten re-creates a computation that no process watches.

    ``ended``: an injector is named after its stream, and the name may be re-created. This maps the name to the
    largest sequencer of its removed incarnations; an owner with a sequencer up to it is a remnant. Injectors that are
    no longer remembered share one bound, the largest of theirs. New processes have larger sequencers.
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
        """Return the computation, if a sequencer was ever accepted for it."""
        return self._computations.get(name)

    def keyed(self, name: str) -> KeyedComputation:
        """Return the computation, which is created if it is missing. Its members are intervals."""
        found = self._computations.get(name)
        if found is None:
            found = self._computations[name] = KeyedComputation(name)
        assert isinstance(found, KeyedComputation)
        return found

    def injector(self, name: str) -> InjectorComputation:
        """Return the injector, which is created if it is missing. Its members are processes."""
        found = self._computations.get(name)
        if found is None:
            found = self._computations[name] = InjectorComputation(name)
        assert isinstance(found, InjectorComputation)
        return found

    def is_over(self, name: str, sequencer: int) -> bool:
        """Return whether ``sequencer`` belongs to a removed incarnation of ``name``."""
        if name in self.removed or sequencer <= self.ended.get(name, 0):
            return True
        if not is_injector(name) or sequencer > self.ended.get(_OTHERS, 0):
            return False
        found = self._computations.get(name)
        return found is None or all(share.sequencer != sequencer for share in found.shares())

    def remove(self, name: str, up_to: int = 0) -> None:
        """Forget a computation: an incarnation for ever, an injector's incarnations up to sequencer ``up_to``."""
        self._computations.pop(name, None)
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
            if part.computation:
                pieces.setdefault(part.computation, []).append(part)
        for name, found in pieces.items():
            made = self._computations[name] = _injector(name, found) if is_injector(name) else _keyed(name, found)
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
