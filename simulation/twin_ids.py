"""Ids according to journals, read by the simulator's own code: facts, in the order of the commits (6.1.1).

The facts include everything that an ACK mark or a horizon covers. So each question has one plain answer: did a commit
say it?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import msgspec

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.store.contract import TERMINAL_SEQUENCER

__all__ = ["IdFacts", "OpaqueFacts", "Range", "SequenceFacts", "SequencerFact", "highest_sequencers"]

_ID_BYTES: Final = 16
_COLUMNS: Final = {1: 9, 2: 10}
"""By format number: the number itself, and eight or nine kinds of facts."""

SequencerFact = tuple[str, Any, int]
"""Group (empty for an injector process), producing keys or origin, sequencer."""


@dataclass(slots=True)
class Range:
    """Keys of a receiver for which a sequence is admitted, and its sender's statements about them."""

    keys: KeyInterval
    statements: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """ACK marks, each with the positions below it that have no ACK."""
    committed: set[int] = field(default_factory=set)
    """Positions that entries list individually, while an interval had these keys."""
    whole: list[range] = field(default_factory=list)
    """Ranges of positions: the records there that have these keys are committed."""

    def knows(self, position: int) -> bool:
        """Whether an entry or a statement says that the position is committed."""
        stated = any(position < mark and position not in unacked for mark, unacked in self.statements)
        return stated or position in self.committed or any(position in one for one in self.whole)


@dataclass(slots=True)
class SequenceFacts:
    """One sequence at one receiver."""

    origin: str = ""
    ranges: list[Range] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    """Positions that entries or bases list individually, for any keys.

    One position is one record with one key. A position that one parent of a merge consumed may be known for the keys of
    the other parent.
    """

    def knows(self, position: int, key: bytes) -> bool:
        """Whether a record at ``position`` with the key ``key`` must be known as committed."""
        return any(one.knows(position) for one in self.ranges if key in one.keys)

    def commit(self, positions: Iterable[int]) -> None:
        """An entry or a base lists these positions."""
        news = set(positions)
        self.committed |= news
        for one in self.ranges:
            one.committed |= news

    def admit(self, keys: KeyInterval) -> None:
        """Admit ``keys``. Those that are in no range yet start without committed positions."""
        left: list[KeyInterval] = [keys]
        for one in self.ranges:
            left = [rest for piece in left for rest in _outside(piece, one.keys)]
        self.ranges += [Range(piece) for piece in left]


@dataclass(slots=True)
class OpaqueFacts:
    """The ids of one sending group. ``collect``: the watermark from which on each id may be forgotten."""

    collect: dict[bytes, int] = field(default_factory=dict)
    watermark: int = MIN_TIMESTAMP
    horizon: int = MIN_TIMESTAMP

    def remember(self, collect: int, ids: Iterable[bytes]) -> None:
        """These ids are committed."""
        for one in ids:
            self.collect[one] = max(collect, self.collect.get(one, collect))


class IdFacts:
    """All facts about ids in a receiver's journal."""

    def __init__(self, keys: KeyInterval) -> None:
        self.keys = keys
        self.positions: dict[str, SequenceFacts] = {}
        self.opaque: dict[str, OpaqueFacts] = {}
        self.batches: dict[str, dict[int, set[bytes]]] = {}
        self.sequencers: list[SequencerFact] = []
        self.segments: dict[str, str] = {}
        """The stored segments that the base needs, each with its sending group."""

    def sequence(self, name: str) -> SequenceFacts:
        """The facts of a sequence, known or new."""
        if name not in self.positions:
            self.positions[name] = SequenceFacts()
            self.positions[name].admit(self.keys)
        return self.positions[name]

    # A base.

    def load(self, blob: bytes, segment: Callable[[str], bytes]) -> None:
        """Read one part of a base. ``segment``: returns the ids of a stored segment, by its name."""
        _, rows = msgspec.msgpack.decode(blob)
        for kind, *row in rows:
            self._load(kind, row, segment)

    def _load(self, kind: str, row: list[Any], segment: Callable[[str], bytes]) -> None:
        if kind == "sequence":
            name, origin, pieces = row
            ranges = [Range(KeyInterval(a, b), [(mark, frozenset(holes))]) for a, b, mark, holes in pieces]
            self.positions[name] = SequenceFacts(origin, ranges)
        elif kind == "seen":
            self.positions[row[0]].commit(_positions(row[1:]))
        elif kind == "ranges":
            name, at, numbers = row
            self.positions[name].ranges[at].whole += _whole(numbers)
        elif kind == "horizon":
            facts = self.opaque.setdefault(row[0], OpaqueFacts())
            facts.watermark, facts.horizon = row[1], row[2]
        elif kind == "ids":
            self.opaque.setdefault(row[0], OpaqueFacts()).remember(row[1], _split(row[2]))
        elif kind == "segment":
            group, name, collect = row
            self.segments[name] = group
            self.opaque.setdefault(group, OpaqueFacts()).remember(collect, _split(segment(name)))
        elif kind == "batch":
            self.batches.setdefault(row[0], {}).setdefault(row[1], set()).update(_split(row[2]))
        elif kind == "sequencer":
            self._learn(_sequencer(row))
        elif kind != "counter":
            raise ValueError(f"ids of an unknown kind: {kind!r}")

    # Entries.

    def apply(self, wire: Sequence[Any]) -> None:
        """Read one entry."""
        if not wire:
            return
        assert len(wire) == _COLUMNS[wire[0]], wire
        _, positions, opaque, batches, admitted, marks, retired, sequencers, horizons, *more = wire
        ranged = more[0] if more else []
        for row in sequencers:
            self._learn(_sequencer(row))
        for name, origin in admitted:
            self.positions.setdefault(name, SequenceFacts()).admit(self.keys)
            self.positions[name].origin = origin
        self._commit(positions, ranged)
        for name, mark, unacked in marks:
            for one in self.sequence(name).ranges:
                one.statements.append((mark, frozenset(unacked)))
        for name in retired:
            # If one entry admits and retires a sequence, it was admitted first. A sequence with records that this entry
            # consumes is not retired. The name of a removed computation ends its ids and sequencers.
            if all(name != consumed for consumed, *_ in [*positions, *ranged]):
                self.positions.pop(name, None)
                self.opaque.pop(name, None)
                self.sequencers = [fact for fact in self.sequencers if fact[0] != name]
        for group, watermark, horizon in horizons:
            facts = self.opaque.setdefault(group, OpaqueFacts())
            facts.watermark, facts.horizon = max(watermark, facts.watermark), max(horizon, facts.horizon)
        for group, collect, blob in opaque:
            self.opaque.setdefault(group, OpaqueFacts()).remember(collect, _split(blob))
        for query, batch, blob in batches:
            self.batches.setdefault(query, {}).setdefault(batch, set()).update(_split(blob))

    def _commit(self, positions: Iterable[Sequence[Any]], ranged: Iterable[Sequence[Any]]) -> None:
        for name, *rest in positions:
            self.sequence(name).commit(_positions(rest))
        for name, numbers in ranged:
            for one in self.sequence(name).ranges:
                one.whole += _whole(numbers)

    def _learn(self, fact: SequencerFact) -> None:
        """A floor of an injector group ends all facts of its former lives: those that were stated before it."""
        _, span, number = fact
        if isinstance(span, str) and span.endswith("/"):
            self.opaque.pop(span[:-1], None)
            self.positions = {name: one for name, one in self.positions.items() if not one.origin.startswith(span)}
            self.sequencers = [
                one
                for one in self.sequencers
                if not (
                    isinstance(one[1], str) and one[1].startswith(span) and not number <= one[2] < TERMINAL_SEQUENCER
                )
            ]
        self.sequencers.append(fact)

    def end_former_lives(self, floors: Iterable[SequencerFact]) -> None:
        """Before a merge: the other parents know these floors. What this parent knows of former lives is over.

        A parent that has a sequencer of the present life has its ids, and need not have its floor.
        """
        for floor in floors:
            mine = [number for _, span, number in self.sequencers
                    if isinstance(span, str) and span.startswith(floor[1]) and number < TERMINAL_SEQUENCER]  # fmt: skip
            if max(mine, default=0) < floor[2]:
                self._learn(floor)

    @property
    def floors(self) -> list[SequencerFact]:
        """The floors of injector groups."""
        return [fact for fact in self.sequencers if isinstance(fact[1], str) and fact[1].endswith("/")]

    def inherit(self, parent: IdFacts) -> None:
        """Copy a parent's facts about the keys of this receiver."""
        self.sequencers += parent.sequencers
        for name, theirs in parent.positions.items():
            cut = [(one.keys.intersection(self.keys), one) for one in theirs.ranges]
            ranges = [
                Range(keys, [*one.statements], {*one.committed}, [*one.whole]) for keys, one in cut if keys is not None
            ]
            if ranges:
                mine = self.positions.setdefault(name, SequenceFacts(theirs.origin))
                mine.ranges += ranges
        for name, mine in self.positions.items():
            if name in parent.positions:
                mine.committed |= parent.positions[name].committed
        for group, opaque in parent.opaque.items():
            here = self.opaque.setdefault(group, OpaqueFacts())
            here.watermark, here.horizon = max(here.watermark, opaque.watermark), max(here.horizon, opaque.horizon)
            for one, collect in opaque.collect.items():
                here.remember(collect, (one,))
        for query, batches in parent.batches.items():
            for batch, ids in batches.items():
                self.batches.setdefault(query, {}).setdefault(batch, set()).update(ids)


def highest_sequencers(facts: Iterable[SequencerFact], at: Iterable[tuple[str, bytes]]) -> Mapping[Any, int]:
    """The highest sequencer of each injector process, and of each (group, key) of ``at``."""
    found: dict[Any, int] = {}
    places = list(at)
    for group, span, number in facts:
        if isinstance(span, str):
            found[span] = max(number, found.get(span, 0))
            continue
        start, end = span
        for place in places:
            if place[0] == group and start <= place[1] and (end is None or place[1] < end):
                found[place] = max(number, found.get(place, 0))
    return found


def _positions(wire: Sequence[Any]) -> Iterator[int]:
    first, rest = wire
    if isinstance(rest, int):
        return iter(range(first, first + rest))
    return accumulate(rest, initial=first)


def _whole(wire: Sequence[int]) -> list[range]:
    return [range(first, first + count) for first, count in zip(wire[::2], wire[1::2], strict=True)]


def _split(blob: bytes) -> list[bytes]:
    return [blob[at : at + _ID_BYTES] for at in range(0, len(blob), _ID_BYTES)]


def _sequencer(row: Sequence[Any]) -> SequencerFact:
    group, span, number = row
    return group, span if isinstance(span, str) else (span[0], span[1]), number


def _outside(piece: KeyInterval, keys: KeyInterval) -> list[KeyInterval]:
    """The parts of ``piece`` that are not in ``keys``."""
    if not piece.overlaps(keys):
        return [piece]
    rest = []
    if piece.start < keys.start:
        rest.append(KeyInterval(piece.start, keys.start))
    if keys.end is not None and (piece.end is None or keys.end < piece.end):
        rest.append(KeyInterval(keys.end, piece.end))
    return rest
