"""Checks ids in memory against the journal (G12): the owner knows all committed ids, and no others (G1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millwheel.worker.dedup import Dedup
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.positions import PositionSource
from simulation.twin_ids import IdFacts, OpaqueFacts, SequenceFacts, highest_sequencers

__all__ = ["id_differences", "sequencer_differences"]

Stored = Callable[[str], set[bytes]]
"""The ids of a stored segment, by its name."""


def id_differences(dedup: Dedup, stored: Stored, twin: IdFacts, *, recovered: bool) -> Iterator[str]:
    """The differences between the ids that an owner knows and its journal.

    A serving owner may know more sequences and sequencers than it has committed: its next commit contains them. The
    commit also says whose ids the owner has dropped. An owner that has just ``recovered`` may not differ.
    """
    tables, ended = dedup.tables, _ended(dedup)
    for name in {**tables.positions, **twin.positions}:
        mine, its = tables.positions.get(name), twin.positions.get(name)
        if its is not None and _group_of(its.origin) in ended:
            continue
        if mine is not None and its is not None:
            yield from _position_differences(mine, its, recovered)
        elif recovered or (mine is not None and (mine.seen or any(piece.ranges for piece in mine.pieces))):
            yield f"sequence {name} is {'un' if mine is None else ''}known in memory, and otherwise in the journal"
    for name in {**tables.opaque, **twin.opaque}.keys() - ended:
        yield from _opaque_differences(name, tables.opaque.get(name), stored, twin.opaque.get(name, OpaqueFacts()))
    for query, source in tables.queries.items():
        batches = twin.batches.get(query, {})
        if source.completed != max(batches, default=None):
            entries = max(batches, default=None)
            yield f"query {query} is at batch {source.completed} in memory, and at {entries} in entries"
        for number, batch in source.batches.items():
            ids = batches.get(number, set())
            if batch.seen != ids:
                yield f"batch {number} of {query} has {len(batch.seen)} ids in memory, {len(ids)} in entries"
    if recovered and (lost := twin.batches.keys() - tables.queries.keys()):
        yield f"queries {sorted(lost)} are in the journal, and not in memory"


def _ended(dedup: Dedup) -> set[str]:
    """The groups of which the owner has dropped everything since its last commit: removed computations, and injectors
    whose stream has another life."""
    return {*dedup.next_delta.retired, *dedup.tables.uncommitted_floors}


def _group_of(origin: str) -> str:
    """The group of an injector process, or of the floor of its stream's life."""
    return origin.rpartition("/")[0]


def _position_differences(mine: PositionSource, its: SequenceFacts, recovered: bool) -> Iterator[str]:
    """Keys between two borders are equivalent, so one key of each such range is checked."""
    name = mine.sequence
    keys = sorted({one.keys.start for one in its.ranges} | {piece.interval.start for piece in mine.pieces})
    marks = {mark for one in its.ranges for mark, _ in one.statements} | {piece.mark for piece in mine.pieces}
    holes = {p for one in its.ranges for _, unacked in one.statements for p in unacked}
    asked = its.committed | mine.seen | holes | {mark - 1 for mark in marks if mark} | marks
    asked |= {hole for piece in mine.pieces for hole in piece.holes}
    whole = [one for piece in mine.pieces for one in piece.ranges] + [one for part in its.ranges for one in part.whole]
    asked |= {position for one in whole for position in (max(0, one.start - 1), one.start, one.stop - 1, one.stop)}
    for key in keys:
        here = [one for one in its.ranges if key in one.keys]
        there = [piece for piece in mine.pieces if key in piece.interval]
        if bool(here) != bool(there) and recovered:
            yield f"key {key!r} of {name} is admitted in {'the journal' if here else 'memory'} alone"
        for position in asked if here and there else ():
            committed, known = its.knows(position, key), _knows(mine, position, key)
            if committed and not known:
                yield f"position {position} of {name} is committed for key {key!r}, and unknown in memory (G1)"
            listed = position in mine.seen or any(position in piece.ranges for piece in there)
            if known and not (committed or position in its.committed) and (recovered or listed):
                yield f"position {position} of {name} is known for key {key!r} in memory, and to no takeover"


def _knows(source: PositionSource, position: int, key: bytes) -> bool:
    if position in source.seen:
        return True
    pieces = [piece for piece in source.pieces if key in piece.interval]
    return any(position in piece.ranges or (position < piece.mark and position not in piece.holes) for piece in pieces)


def _opaque_differences(name: str, mine: OpaqueSource | None, stored: Stored, its: OpaqueFacts) -> Iterator[str]:
    known = set() if mine is None else _ids(mine, stored)
    if extra := known - its.collect.keys():
        yield f"ids {sorted(extra)} of {name} are known in memory, and to no takeover"
    horizon = its.horizon if mine is None else mine.horizon
    if mine is not None and its.horizon > horizon:
        yield f"ids of {name} are kept from {horizon} in memory, from {its.horizon} in the journal"
    if lost := sorted(one for one, collect in its.collect.items() if collect >= horizon and one not in known):
        yield f"ids {lost} of {name} are committed and kept from {horizon}, and unknown in memory (G1)"


def _ids(source: OpaqueSource, stored: Stored) -> set[bytes]:
    found = set(source.exact)
    for name, segment in source.segments.items():
        found |= stored(name) if segment.ids is None else segment.ids
    return found


def sequencer_differences(dedup: Dedup, twin: IdFacts, *, recovered: bool) -> Iterator[str]:
    """Sequencers of senders: an owner knows the committed ones, or newer ones (G3)."""
    rows = dedup.tables.sequencers.rows()
    places = {(name, span[0]) for name, span, _ in [*rows, *twin.sequencers] if not isinstance(span, str)}
    mine: Any = highest_sequencers(rows, places)
    its: Any = highest_sequencers(twin.sequencers, places)
    ended = _ended(dedup)
    for place, number in its.items():
        group = _group_of(place) if isinstance(place, str) else place[0]
        if mine.get(place, 0) < number and group not in ended:
            yield f"sequencer {number} of {place} is in the journal, {mine.get(place, 0)} in memory (G3)"
    if recovered and (extra := [place for place in mine if mine[place] > its.get(place, 0)]):
        yield f"the sequencers of {extra} are in memory, and not in the journal"
