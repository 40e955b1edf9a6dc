"""The opaque ids that a receiver knows of one sending group (6.1.1).

Invariant: an id is in exactly one place: in ``exact`` (committed recently), in the ids of an unstored segment, or in a
stored segment. Each id has a time from which it may be forgotten. That is the largest of its record's timestamp and the
sending group's watermark at sending and at receipt. Otherwise a late record's id could be collected at once.
Runs and segments keep the largest time of their ids: a time that is too large only keeps ids longer.

One id may be committed twice: its owner had forgotten it, and a copy came again, for example of an injected record
after ``id_slack``. A takeover replays both commits, and may still have the first one in a run. So an id in ``exact`` is
in one run, that of its last commit, with the larger time. Otherwise the end of the first run would take it away.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.dedup.results import DeliveryVerdict, PendingIds
from millwheel.worker.dedup.segments import (
    Front,
    IdSegment,
    SegmentCache,
    SegmentSealed,
    dump_halves,
    halves,
    load_halves,
)

__all__ = ["OpaqueSource", "Resolution"]

MAX_RUN_IDS: Final = 1024
"""Exact ids are kept in runs of at most this size (or one commit), in commit order."""


class _IdRun:
    __slots__ = ("collect", "ids")

    def __init__(self, collect: int, ids: list[bytes]) -> None:
        self.collect = collect
        self.ids = ids


class Resolution(NamedTuple):
    """The results for a verdict's unsure records."""

    fresh: list[int]
    """Now pending. The caller takes or abandons them."""
    duplicates: list[int]
    """Copies of committed records: ACK now."""
    again: list[int]
    """Their segment was collected meanwhile: answer REFUSED_FULL. The next copy is checked again."""


class OpaqueSource:
    """The ids of the records that one group sent to this receiver."""

    __slots__ = ("_cache", "_front", "exact", "group", "horizon", "pending", "runs", "segments", "watermark")

    def __init__(self, group: str, cache: SegmentCache) -> None:
        self.group = group
        self.pending: PendingIds[bytes] = PendingIds()
        self.exact: set[bytes] = set()
        self.runs: list[_IdRun] = []
        self.segments: dict[str, IdSegment] = {}
        self.watermark: int = MIN_TIMESTAMP
        """The sending group's watermark, as last received."""
        self.horizon: int = MIN_TIMESTAMP
        """Ids whose time is below it are forgotten."""
        self._front = Front()
        self._cache = cache

    def check(self, ids: Sequence[bytes], timestamps: Sequence[int], least: int, verdict: DeliveryVerdict) -> None:
        """Check the ids of one delivery. ``least`` is the earliest time from which they may be forgotten."""
        if not ids:
            verdict.all_fresh = True
            return
        verdict.collect_from = max(max(timestamps), self.watermark, least)
        distinct = set(ids)
        pending = self.pending.ids
        if len(distinct) == len(ids) and distinct.isdisjoint(pending) and distinct.isdisjoint(self.exact):
            sealed = self._sealed(ids)
            if not sealed:
                pending |= distinct
                verdict.all_fresh = True
                return
        else:
            sealed = self._sealed(ids)
        self._check_each(ids, sealed, verdict)

    def _sealed(self, ids: Sequence[bytes]) -> dict[bytes, tuple[str, ...] | None]:
        """The ids that are in a segment (None), or may be in one of the named segments."""
        if not self.segments:
            return {}
        found: dict[bytes, tuple[str, ...] | None] = {}
        for id_, half in self._front.hits(ids).items():
            known, unread = self._look_up(id_, half)
            if known:
                found[id_] = None
            elif unread:
                found[id_] = unread
        return found

    def _check_each(
        self, ids: Sequence[bytes], sealed: Mapping[bytes, tuple[str, ...] | None], verdict: DeliveryVerdict
    ) -> None:
        pending, exact = self.pending.ids, self.exact
        fresh: list[int] = []
        duplicates: list[int] = []
        waiting: list[int] = []
        for index, id_ in enumerate(ids):
            if id_ in pending:
                waiting.append(index)
            elif id_ in exact:
                duplicates.append(index)
            elif id_ not in sealed:
                fresh.append(index)
                pending.add(id_)
            else:
                unread = sealed[id_]
                if unread is None:
                    duplicates.append(index)
                else:
                    verdict.unsure[index] = unread
                    pending.add(id_)
        verdict.fresh, verdict.duplicates, verdict.waiting = fresh, duplicates, waiting

    def _look_up(self, id_: bytes, half: int) -> tuple[bool, tuple[str, ...]]:
        """Whether a segment in memory has the id. If none has it, also the segments that must be read to decide."""
        unread = []
        for name, segment in self.segments.items():
            if segment.ids is not None:
                if id_ in segment.ids:
                    return True, ()
            elif segment.may_have(half):
                if name not in self._cache:
                    unread.append(name)
                elif self._cache.has(name, id_):
                    return True, ()
        return False, tuple(unread)

    def resolve(self, verdict: DeliveryVerdict, blobs: Mapping[str, bytes]) -> Resolution:
        """Check the unsure ids against the segments that were read. Empties ``verdict.unsure``."""
        self._cache.add({name: blob for name, blob in blobs.items() if name in self.segments})
        fresh: list[int] = []
        duplicates: list[int] = []
        again: list[int] = []
        for index, names in verdict.unsure.items():
            if any(name in self._cache and self._cache.has(name, verdict.ids[index]) for name in names):
                duplicates.append(index)
            elif all(name in self._cache for name in names):
                fresh.append(index)
            else:
                again.append(index)
        self._cache.trim()
        verdict.unsure = {}
        verdict.fresh = [*verdict.fresh, *fresh]
        self.pending.settle([verdict.ids[index] for index in (*duplicates, *again)])
        return Resolution(fresh, duplicates, again)

    def commit(self, collect: int, ids: Sequence[bytes]) -> None:
        """The pending ids are committed."""
        self.pending.settle(ids)
        self.remember(collect, ids)

    def remember(self, collect: int, ids: Sequence[bytes]) -> None:
        """The ids are committed, and may be forgotten once the horizon is above ``collect``."""
        if not self.exact.isdisjoint(ids):
            collect = max(collect, self._take_out(self.exact.intersection(ids)))
        self.exact.update(ids)
        runs = self.runs
        if runs and len(runs[-1].ids) + len(ids) <= MAX_RUN_IDS:
            runs[-1].ids += ids
            runs[-1].collect = max(runs[-1].collect, collect)
        else:
            runs.append(_IdRun(collect, list(ids)))

    def _take_out(self, again: Collection[bytes]) -> int:
        """Take ids that are committed again out of their runs. Return the latest time of these runs."""
        latest = int(MIN_TIMESTAMP)
        for run in self.runs:
            left = [id_ for id_ in run.ids if id_ not in again]
            if len(left) < len(run.ids):
                run.ids, latest = left, max(latest, run.collect)
        return latest

    def forget(self) -> None:
        """Forget the ids below the horizon. The sender sends no record with such an id again.

        A copy that it sent earlier may still arrive. It is refused by its sequencer or its watermark.
        """
        horizon, kept = self.horizon, []
        for run in self.runs:
            if run.collect < horizon:
                self.exact.difference_update(run.ids)
            else:
                kept.append(run)
        self.runs = kept
        for name in [name for name, segment in self.segments.items() if segment.collect < horizon]:
            del self.segments[name]
            self._front.drop(name)
            self._cache.discard(name)

    def seal(self, name: str, most: int) -> SegmentSealed:
        """Make a segment of the exact ids. If there are more than ``most``, only the oldest whole runs go into it."""
        runs, count = self.runs, 0
        for number, run in enumerate(runs, 1):
            count += len(run.ids)
            if count >= most:
                runs = runs[:number]
                break
        # Iterate over the runs' lists, not over the set: ids in arrival order are adjacent in memory.
        blob = b"".join(chain.from_iterable(run.ids for run in runs))
        known = halves(blob)
        sealed, self.runs = self.exact, self.runs[len(runs) :]
        if self.runs:
            sealed = set(chain.from_iterable(run.ids for run in runs))
            self.exact = self.exact - sealed
        else:
            self.exact = set()
        self.add_segment(IdSegment(name, max(run.collect for run in runs), known, sealed), known)
        return SegmentSealed(name, self.group, blob, dump_halves(known))

    def load_segment(self, name: str, collect: int, stored: bytes) -> None:
        """Restore a stored segment from the halves stored beside it."""
        known = load_halves(stored)
        self.add_segment(IdSegment(name, collect, known, None), known)

    def add_segment(self, segment: IdSegment, known: array[int]) -> None:
        """Add a segment, and its halves to the front filter."""
        self.segments[segment.name] = segment
        self._front.cover(segment.name, known, sum(other.count for other in self.segments.values()))

    def stored(self, name: str) -> None:
        """The store has the segment: only its fingerprints stay in memory. No effect if it is collected already."""
        segment = self.segments.get(name)
        if segment is not None:
            segment.ids = None

    def inherit(self, parent: OpaqueSource) -> None:
        """Merge the ids and times of a parent into this source."""
        self.horizon = max(self.horizon, parent.horizon)
        self.watermark = max(self.watermark, parent.watermark)
        held = {id_: run for run in self.runs for id_ in run.ids}
        for run in parent.runs:
            self._inherit_ids(run.collect, run.ids, held)
        self._front.adopt(parent._front)
        for segment in parent.segments.values():
            if segment.ids is None:
                self.segments[segment.name] = segment
            else:
                self._inherit_ids(segment.collect, segment.ids, held)

    def _inherit_ids(self, collect: int, ids: Collection[bytes], held: Mapping[bytes, _IdRun]) -> None:
        """``held``: the runs of the ids that other parents have. Of two times of an id the larger one counts."""
        new = []
        for id_ in ids:
            run = held.get(id_)
            if run is not None:
                run.collect = max(run.collect, collect)
            elif id_ not in self.exact:
                new.append(id_)
        if new:
            self.remember(collect, new)
