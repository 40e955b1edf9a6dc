"""Ids against a scan (G12): of what an owner knows to be committed a takeover must know, too, or it takes copies for
fresh ones (G1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millwheel.worker.dedup import Dedup
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.positions import PositionSource

__all__ = ["unknown_ids"]

Stored = Callable[[str], set[bytes]]
"""The ids of a segment that the store has, by its name."""


Known = tuple[Dedup, Stored]


def unknown_ids(owner: Known, takeover: Known, forgotten_from: int) -> Iterator[str]:
    """What an ``owner`` knows, and a ``takeover`` does not; each with what it can read of the store.

    The owner may know less one by one: what marks and horizons speak for it forgets first, and says so with its next
    commit. ``forgotten_from``: no horizon below it lets any id be forgotten.
    """
    known, found = owner[0]._tables, takeover[0]._tables
    for name, source in known.positions.items():
        if lost := sorted(position for position in source.seen if not _has(found.positions.get(name), position)):
            yield f"positions {lost} of {name} are known in memory, and to no takeover"
        if name in found.positions and _mark(found.positions[name]) > _mark(source):
            yield f"the mark of {name} is {_mark(source)} in memory, and {_mark(found.positions[name])} in the store"
    for computation, opaque in known.opaque.items():
        other = found.opaque.get(computation)
        if other is None or other.horizon < forgotten_from:
            ids = _ids(opaque, owner[1]) - (set() if other is None else _ids(other, takeover[1]))
            if ids:
                yield f"ids {sorted(ids)} of {computation} are known in memory, and to no takeover"
    for query, batches in known.queries.items():
        its = found.queries.get(query)
        if batches.floor is not None and (its is None or its.floor != batches.floor):
            yield f"query {query} is at batch {batches.floor} in memory, and at {its and its.floor} in the store"
            continue
        for number, batch in batches.batches.items():
            seen = its.batches[number].seen if its is not None and number in its.batches else set()
            if batch.seen - seen:
                yield f"ids {sorted(batch.seen - seen)} of batch {number} are known in memory, and to no takeover"


def _has(source: PositionSource | None, position: int) -> bool:
    if source is None:
        return False
    below = any(position < piece.mark and position not in piece.holes for piece in source.pieces)
    return below or position in source.seen


def _mark(source: PositionSource) -> int:
    return max((piece.mark for piece in source.pieces), default=0)


def _ids(source: OpaqueSource, stored: Stored) -> set[bytes]:
    found = set(source.exact)
    for name, segment in source.segments.items():
        found |= stored(name) if segment.ids is None else segment.ids
    return found
