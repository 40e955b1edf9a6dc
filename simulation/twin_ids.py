"""Ids as journals have them, read by code of the simulator's own: facts, in the order of the commits (6.1.1).

Nothing is forgotten here that a mark or a horizon covers, so each question has one plain answer: did a commit say it?
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

import msgspec

from millwheel.core.keys import KeyInterval
from millwheel.core.time import MIN_TIMESTAMP

__all__ = ["IdFacts", "OpaqueFacts", "Range", "SequenceFacts", "SequencerFact", "highest_sequencers"]

_ID_BYTES: Final = 16
_COLUMNS: Final = 9
"""The format number, and eight kinds of facts."""

SequencerFact = tuple[str, Any, int]
"""Computation (empty for an injector process), producing keys or origin, sequencer."""


@dataclass(slots=True)
class Range:
    """Keys of a receiver for which a sequence is admitted, and what its sender has stated of them."""

    keys: KeyInterval
    statements: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    """Marks, each with the positions below it that are not ACKed."""
    committed: set[int] = field(default_factory=set)
    """Positions that entries name one by one, while an interval had these keys."""

    def knows(self, position: int) -> bool:
        """Whether an entry or a statement says that the position is committed."""
        stated = any(position < mark and position not in unacked for mark, unacked in self.statements)
        return stated or position in self.committed


@dataclass(slots=True)
class SequenceFacts:
    """One sequence at one receiver."""

    origin: str = ""
    ranges: list[Range] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    """Positions that entries or bases name one by one, for any keys: one position is one record, of one key. What was
    consumed in one parent of a merge may be known for the keys of the other one."""

    def knows(self, position: int, key: bytes) -> bool:
        """Whether a record at ``position``, with the key ``key``, is certainly known to be committed."""
        return any(one.knows(position) for one in self.ranges if key in one.keys)

    def commit(self, positions: Iterable[int]) -> None:
        """An entry, or a base, names these positions."""
        news = set(positions)
        self.committed |= news
        for one in self.ranges:
            one.committed |= news

    def admit(self, keys: KeyInterval) -> None:
        """Nothing is committed for those of ``keys`` that are in no range."""
        left: list[KeyInterval] = [keys]
        for one in self.ranges:
            left = [rest for piece in left for rest in _outside(piece, one.keys)]
        self.ranges += [Range(piece) for piece in left]


@dataclass(slots=True)
class OpaqueFacts:
    """The ids of one sending computation. ``collect``: from when on each may be forgotten."""

    collect: dict[bytes, int] = field(default_factory=dict)
    watermark: int = MIN_TIMESTAMP
    horizon: int = MIN_TIMESTAMP

    def remember(self, collect: int, ids: Iterable[bytes]) -> None:
        """These ids are committed."""
        for one in ids:
            self.collect[one] = max(collect, self.collect.get(one, collect))


class IdFacts:
    """All that a receiver's journal says of ids."""

    def __init__(self, keys: KeyInterval) -> None:
        self.keys = keys
        self.positions: dict[str, SequenceFacts] = {}
        self.opaque: dict[str, OpaqueFacts] = {}
        self.batches: dict[str, dict[int, set[bytes]]] = {}
        self.sequencers: list[SequencerFact] = []
        self.segments: dict[str, str] = {}
        """The stored segments that the base relies on, each with its sending computation."""

    def _sequence(self, name: str) -> SequenceFacts:
        if name not in self.positions:
            self.positions[name] = SequenceFacts()
            self.positions[name].admit(self.keys)
        return self.positions[name]

    # A base.

    def load(self, blob: bytes, segment: Callable[[str], bytes]) -> None:
        """Take one part of a base. ``segment``: the ids of a stored segment, by its name."""
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
        elif kind == "horizon":
            facts = self.opaque.setdefault(row[0], OpaqueFacts())
            facts.watermark, facts.horizon = row[1], row[2]
        elif kind == "ids":
            self.opaque.setdefault(row[0], OpaqueFacts()).remember(row[1], _split(row[2]))
        elif kind == "segment":
            computation, name, collect = row
            self.segments[name] = computation
            self.opaque.setdefault(computation, OpaqueFacts()).remember(collect, _split(segment(name)))
        elif kind == "batch":
            self.batches.setdefault(row[0], {}).setdefault(row[1], set()).update(_split(row[2]))
        elif kind == "sequencer":
            self.sequencers.append(_sequencer(row))
        elif kind != "counter":
            raise ValueError(f"ids of an unknown kind: {kind!r}")

    # Entries.

    def apply(self, wire: Sequence[Any]) -> None:
        """Take what one entry says."""
        if not wire:
            return
        assert len(wire) == _COLUMNS, wire
        _, positions, opaque, batches, admitted, marks, retired, sequencers, horizons = wire
        self.sequencers += map(_sequencer, sequencers)
        for name, origin in admitted:
            self.positions.setdefault(name, SequenceFacts()).admit(self.keys)
            self.positions[name].origin = origin
        for name, *rest in positions:
            self._sequence(name).commit(_positions(rest))
        for name, mark, unacked in marks:
            for one in self._sequence(name).ranges:
                one.statements.append((mark, frozenset(unacked)))
        for name in retired:
            # It was admitted before, if both are in one entry. Whose records are consumed here is not retired.
            if all(name != consumed for consumed, *_ in positions):
                self.positions.pop(name, None)
        for computation, watermark, horizon in horizons:
            facts = self.opaque.setdefault(computation, OpaqueFacts())
            facts.watermark, facts.horizon = max(watermark, facts.watermark), max(horizon, facts.horizon)
        for computation, collect, blob in opaque:
            self.opaque.setdefault(computation, OpaqueFacts()).remember(collect, _split(blob))
        for query, batch, blob in batches:
            self.batches.setdefault(query, {}).setdefault(batch, set()).update(_split(blob))

    def inherit(self, parent: IdFacts) -> None:
        """Take what a parent knew of the keys here."""
        self.sequencers += parent.sequencers
        for name, theirs in parent.positions.items():
            cut = [(one.keys.intersection(self.keys), one) for one in theirs.ranges]
            ranges = [Range(keys, [*one.statements], {*one.committed}) for keys, one in cut if keys is not None]
            if ranges:
                mine = self.positions.setdefault(name, SequenceFacts(theirs.origin))
                mine.ranges += ranges
        for name, mine in self.positions.items():
            if name in parent.positions:
                mine.committed |= parent.positions[name].committed
        for computation, opaque in parent.opaque.items():
            here = self.opaque.setdefault(computation, OpaqueFacts())
            here.watermark, here.horizon = max(here.watermark, opaque.watermark), max(here.horizon, opaque.horizon)
            for one, collect in opaque.collect.items():
                here.remember(collect, (one,))
        for query, batches in parent.batches.items():
            for batch, ids in batches.items():
                self.batches.setdefault(query, {}).setdefault(batch, set()).update(ids)


def highest_sequencers(facts: Iterable[SequencerFact], at: Iterable[tuple[str, bytes]]) -> Mapping[Any, int]:
    """The highest sequencer of each injector process, and of each (computation, key) of ``at``."""
    found: dict[Any, int] = {}
    places = list(at)
    for computation, span, number in facts:
        if isinstance(span, str):
            found[span] = max(number, found.get(span, 0))
            continue
        start, end = span
        for place in places:
            if place[0] == computation and start <= place[1] and (end is None or place[1] < end):
                found[place] = max(number, found.get(place, 0))
    return found


def _positions(wire: Sequence[Any]) -> Iterator[int]:
    first, rest = wire
    if isinstance(rest, int):
        return iter(range(first, first + rest))
    return accumulate(rest, initial=first)


def _split(blob: bytes) -> list[bytes]:
    return [blob[at : at + _ID_BYTES] for at in range(0, len(blob), _ID_BYTES)]


def _sequencer(row: Sequence[Any]) -> SequencerFact:
    computation, span, number = row
    return computation, span if isinstance(span, str) else (span[0], span[1]), number


def _outside(piece: KeyInterval, keys: KeyInterval) -> list[KeyInterval]:
    """What of ``piece`` is not in ``keys``."""
    if not piece.overlaps(keys):
        return [piece]
    rest = []
    if piece.start < keys.start:
        rest.append(KeyInterval(piece.start, keys.start))
    if keys.end is not None and (piece.end is None or keys.end < piece.end):
        rest.append(KeyInterval(keys.end, piece.end))
    return rest
