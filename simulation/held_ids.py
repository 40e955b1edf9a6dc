"""How many ids a duplicate check keeps in memory, for checks of what may be left (G13)."""

from __future__ import annotations

from millwheel.worker.dedup import Dedup

__all__ = ["pending_ids", "seen_ids", "segment_count"]


def pending_ids(dedup: Dedup) -> int:
    """Ids, and ranges of them, received and not yet committed."""
    tables = dedup.tables
    held = sum(len(source.pending.ids) + len(source.pending.ranges) for source in tables.positions.values())
    held += sum(len(source.pending.ids) for source in tables.opaque.values())
    return held + sum(len(b.pending.ids) for query in tables.queries.values() for b in query.batches.values())


def seen_ids(dedup: Dedup) -> int:
    """Committed ids that are kept one by one in memory, and ranges of them."""
    tables = dedup.tables
    held = sum(len(source.seen) for source in tables.positions.values())
    held += sum(len(piece.ranges) for source in tables.positions.values() for piece in source.pieces)
    held += sum(len(source.exact) for source in tables.opaque.values())
    held += sum(len(s.ids) for source in tables.opaque.values() for s in source.segments.values() if s.ids)
    return held + sum(len(b.seen) for query in tables.queries.values() for b in query.batches.values())


def segment_count(dedup: Dedup) -> int:
    """Sealed segments that are not collected yet."""
    return sum(len(source.segments) for source in dedup.tables.opaque.values())
