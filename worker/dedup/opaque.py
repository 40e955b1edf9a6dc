"""What a receiver knows of the opaque ids of one sending computation (6.1.1).

An id is in exactly one place: ``exact`` (committed lately), an unstored segment's ids, or a stored
segment. Each carries the time from which it may be forgotten: the largest of its record's timestamp and the sending
computation's watermark when it was sent and received, so that a late record's id is not born collectable.
Groups and segments keep the largest such time of theirs; to err upwards only keeps ids longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from millwheel.core.time import MIN_TIMESTAMP
from millwheel.worker.dedup.pending import PendingIds
from millwheel.worker.dedup.segments import Front, Segment, SegmentCache, SegmentSealed, candidates
from millwheel.worker.dedup.verdict import Resolution, Verdict, Waiter

__all__ = ["OpaqueSource"]

_GROUP: Final = 1024
"""Exact ids are collected in groups of at least so many, in the order of their commits."""


class _Group:
    __slots__ = ("collect", "ids")

    def __init__(self, collect: int, ids: list[bytes]) -> None:
        self.collect = collect
        self.ids = ids


class OpaqueSource:
    """The ids of the records that one computation (or injector) sent to this receiver."""

    __slots__ = ("_cache", "_front", "computation", "exact", "groups", "horizon", "pending", "segments", "watermark")

    def __init__(self, computation: str, cache: SegmentCache) -> None:
        self.computation = computation
        self.pending: PendingIds[bytes] = PendingIds()
        self.exact: set[bytes] = set()
        self.groups: list[_Group] = []
        self.segments: dict[str, Segment] = {}
        self.watermark: int = MIN_TIMESTAMP
        """The sending computation's, as last heard."""
        self.horizon: int = MIN_TIMESTAMP
        """Ids whose time is below it have been forgotten."""
        self._front = Front()
        self._cache = cache

    def check(self, ids: Sequence[bytes], timestamps: Sequence[int], sent_at: int, verdict: Verdict) -> None:
        """Judge the ids of one delivery, sent when the sender's own watermark was ``sent_at``."""
        if not ids:
            verdict.all_fresh = True
            return
        verdict._collect_from = max(max(timestamps), self.watermark, sent_at)
        distinct = set(ids)
        pending = self.pending.ids
        if (
            len(distinct) == len(ids)
            and distinct.isdisjoint(pending)
            and distinct.isdisjoint(self.exact)
            and not (self.segments and self._maybe_sealed(ids))
        ):
            pending |= distinct
            verdict.all_fresh = True
        else:
            self._check_each(ids, verdict)

    def _maybe_sealed(self, ids: Sequence[bytes]) -> set[bytes]:
        """The ids that may be in a segment."""
        found = self._front.hits(ids)
        for segment in self.segments.values():
            if segment.ids is not None:
                found.update(segment.ids.intersection(ids))
            elif not self._front.covers(segment.name):
                found.update(id_ for id_ in ids if candidates((segment,), id_))
        return found

    def _check_each(self, ids: Sequence[bytes], verdict: Verdict) -> None:
        pending, exact = self.pending.ids, self.exact
        maybe = self._maybe_sealed(ids) if self.segments else ()
        fresh: list[int] = []
        duplicates: list[int] = []
        waiting: list[int] = []
        for index, id_ in enumerate(ids):
            if id_ in pending:
                waiting.append(index)
                self.pending.wait(id_, verdict, index)
            elif id_ in exact:
                duplicates.append(index)
            else:
                known: bool | tuple[str, ...] = self._look_up(id_) if id_ in maybe else False
                if known is True:
                    duplicates.append(index)
                    continue
                pending.add(id_)
                if known:
                    verdict.unsure[index] = known
                else:
                    fresh.append(index)
        verdict.fresh, verdict.duplicates, verdict.waiting = fresh, duplicates, waiting

    def _look_up(self, id_: bytes) -> bool | tuple[str, ...]:
        """Whether a segment has the id; where that takes reading, the segments to read."""
        for segment in self.segments.values():
            if segment.ids is not None and id_ in segment.ids:
                return True
        unread = []
        for name in candidates(self.segments.values(), id_):
            if name not in self._cache:
                unread.append(name)
            elif self._cache.has(name, id_):
                return True
        return tuple(unread) or False

    def resolve(self, verdict: Verdict, blobs: Mapping[str, bytes]) -> Resolution:
        """Judge the unsure ids by the segments read; empties ``verdict.unsure``."""
        self._cache.add({name: blob for name, blob in blobs.items() if name in self.segments})
        fresh: list[int] = []
        duplicates: list[int] = []
        again: list[int] = []
        for index, names in verdict.unsure.items():
            if any(name in self._cache and self._cache.has(name, verdict._ids[index]) for name in names):
                duplicates.append(index)
            elif all(name in self._cache for name in names):
                fresh.append(index)
            else:
                again.append(index)
        self._cache.trim()
        verdict.unsure = {}
        verdict.fresh = [*verdict.fresh, *fresh]
        released = self.pending.settle([verdict._ids[index] for index in duplicates])
        refused = self.pending.settle([verdict._ids[index] for index in again])
        return Resolution(fresh, duplicates, again, released, refused)

    def commit(self, collect: int, ids: Sequence[bytes]) -> list[Waiter]:
        """The pending ids are committed; returns the copies that waited for that."""
        released = self.pending.settle(ids)
        self.remember(collect, ids)
        return released

    def remember(self, collect: int, ids: Sequence[bytes]) -> None:
        """The ids are committed, and may be forgotten once the horizon is above ``collect``."""
        self.exact.update(ids)
        groups = self.groups
        if groups and len(groups[-1].ids) + len(ids) <= _GROUP:
            groups[-1].ids += ids
            groups[-1].collect = max(groups[-1].collect, collect)
        else:
            groups.append(_Group(collect, list(ids)))

    def advance(self, watermark: int, horizon: int) -> bool:
        """Forget what the sender can no longer send; returns whether the horizon moved.

        What a stray copy could still carry is refused by its sequencer or its watermark from now on.
        """
        self.watermark = max(self.watermark, watermark)
        if horizon <= self.horizon:
            return False
        self.horizon = horizon
        kept = []
        for group in self.groups:
            if group.collect < horizon:
                self.exact.difference_update(group.ids)
            else:
                kept.append(group)
        self.groups = kept
        for name in [name for name, segment in self.segments.items() if segment.collect < horizon]:
            del self.segments[name]
            self._front.drop(name)
            self._cache.discard(name)
        return True

    def seal(self, name: str) -> SegmentSealed:
        """Make the exact ids a segment."""
        segment, blob = Segment.seal(name, max(group.collect for group in self.groups), self.exact)
        self.segments[name] = segment
        self.exact, self.groups = set(), []
        return SegmentSealed(name, self.computation, blob, segment.filter.save_bytes())

    def stored(self, name: str) -> None:
        """The store has the segment: only its filter stays. (Nothing happens if it is collected already.)"""
        segment = self.segments.get(name)
        if segment is not None and segment.ids is not None:
            self.cover(name, segment.ids)
            segment.ids = None

    def cover(self, name: str, ids: set[bytes]) -> None:
        """Put a segment behind the front filter, so that checking costs no more for its being there."""
        if name in self.segments and not self._front.covers(name):
            self._front.cover(name, ids, sum(segment.count for segment in self.segments.values()))

    def uncovered(self) -> list[str]:
        """Stored segments whose own filters every delivery has to ask: those taken over."""
        return [n for n, segment in self.segments.items() if segment.ids is None and not self._front.covers(n)]

    @property
    def bytes_held(self) -> int:
        """An estimate of the memory: an id in a set costs its 49 bytes, a slot and its place in a group."""
        unstored = sum(len(segment.ids) for segment in self.segments.values() if segment.ids is not None)
        filters = sum(segment.filter.size_in_bits // 8 for segment in self.segments.values())
        return 130 * (len(self.pending.ids) + len(self.exact) + unstored) + filters + self._front.bytes_held
