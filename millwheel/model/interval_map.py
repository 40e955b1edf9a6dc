"""Interval maps in the catalog: the journal, sequencer and owner of each key (section 7.1, G11)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_chunks import (
    CoverageError,
    IntervalChunk,
    MapEdit,
    check_coverage,
    interval_from_proto,
    interval_to_proto,
)
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = [
    "NO_OWNER",
    "CoverageError",
    "IntervalMap",
    "Owner",
    "check_coverage",
    "initial_intervals",
    "interval_from_proto",
    "interval_to_proto",
]

Owner: TypeAlias = tuple[str, int]
"""A worker's id, and the revision that created the registration under which it got an interval.

NO_OWNER stands for an interval without an owner.
"""

NO_OWNER: Final[Owner] = ("", 0)

_FIRST_PRINTABLE, _LAST_PRINTABLE = 0x20, 0x7E


def initial_intervals(count: int, split_points: Iterable[bytes] = ()) -> list[KeyInterval]:
    """The first intervals of a computation, before any of its keys is known.

    If there are ``split_points``, they are the boundaries. Otherwise ``count`` intervals divide the printable ASCII
    range evenly, by the first two characters. User keys are text, so an even division of the whole byte space would
    leave most intervals without keys. Both ways are only estimates. Later splits by observed keys correct them.

    Args:
        count: The number of intervals, if there are no split points.
        split_points: Keys at which intervals begin.

    Raises:
        ValueError: A split point is empty, or ``count`` is out of range.
    """
    points = sorted(set(split_points)) or _spread(count)
    if b"" in points:
        raise ValueError("the empty key cannot be a split point: every interval map begins there")
    edges: list[bytes | None] = [*points, None]
    return [KeyInterval(start, end) for start, end in zip([b"", *points], edges, strict=True)]


def _spread(count: int) -> list[bytes]:
    width = _LAST_PRINTABLE - _FIRST_PRINTABLE + 1
    if not 1 <= count <= width * width:
        raise ValueError(f"{count} initial intervals: give a number from 1 to {width * width}")
    points = []
    for index in range(1, count):
        high, low = divmod(index * width * width // count, width)
        points.append(bytes([_FIRST_PRINTABLE + high, _FIRST_PRINTABLE + low]))
    return points


class IntervalMap:
    """An interval map with indexes for lookups by key, by journal and by owner.

    The cost of applying a changed chunk depends on the chunk's size alone, not on the map's size. A map without
    references is deleted chunk by chunk. During that deletion some keys are in no interval.

    Invariant: no two intervals contain the same key, so each key has one owner. A wrong edit in the coordinator could
    break this; ``chunks`` then raises CoverageError.
    """

    __slots__ = ("_by_number", "_chunks", "_journals", "_owned", "_parents", "_record", "_starts", "name", "origin")

    def __init__(self, name: IncarnationId, record: catalog.IntervalMapRecord | None = None) -> None:
        """``record``: a whole map; CoverageError if it violates G11. None: ``update`` adds the chunks later."""
        self.name = name
        self.origin = ("", "")
        """The names of the computation and of its topology. Both are empty for a log."""
        self._by_number: dict[int, IntervalChunk] = {}
        self._chunks: list[IntervalChunk] | None = []
        self._starts: list[bytes] = []
        self._record: catalog.IntervalMapRecord | None = None
        self._journals: dict[str, catalog.IntervalRecord] = {}
        self._parents: dict[str, set[int]] = {}
        self._owned: dict[Owner, dict[str, catalog.IntervalRecord]] = {}
        if record is not None:
            edit = MapEdit(name, ())
            edit.replace_all(record.intervals)
            head = catalog.IntervalMapRecord(computation=record.computation, topology=record.topology)
            self._take(head, edit.changes()[0])

    # Following the coordinator.

    def update(self, chunks: Mapping[int, catalog.IntervalMapRecord | None]) -> None:
        """Apply the chunks of one revision, by number. None deletes a chunk."""
        for number in chunks:
            self._drop(number)
        for number, record in chunks.items():
            if record is not None:
                self._take(record, [IntervalChunk(self.name, number, record.intervals)])

    def _drop(self, number: int) -> None:
        chunk = self._by_number.pop(number, None)
        if chunk is None:
            return
        self._chunks = self._record = None
        for interval in chunk.intervals:
            del self._journals[interval.journal]
            owned = self._owned[_owner_of(interval)]
            del owned[interval.journal]
            if not owned:
                del self._owned[_owner_of(interval)]
            for parent in interval.parents:
                # Both children of a split may be in this chunk. The first one removes the entry; the second finds none.
                homes = self._parents.get(parent.journal, set())
                homes.discard(number)
                if not homes:
                    self._parents.pop(parent.journal, None)

    def _take(self, head: catalog.IntervalMapRecord, chunks: Iterable[IntervalChunk]) -> None:
        self.origin = (head.computation, head.topology)
        for chunk in chunks:
            self._chunks = self._record = None
            self._by_number[chunk.number] = chunk
            for interval in chunk.intervals:
                self._journals[interval.journal] = interval
                self._owned.setdefault(_owner_of(interval), {})[interval.journal] = interval
                for parent in interval.parents:
                    self._parents.setdefault(parent.journal, set()).add(chunk.number)

    # Lookups.

    @property
    def chunks(self) -> Sequence[IntervalChunk]:
        """The chunks in key order. CoverageError if two of them overlap."""
        if self._chunks is None:
            self._chunks = sorted(self._by_number.values(), key=lambda chunk: chunk.start)
            self._starts = [chunk.start for chunk in self._chunks]
            for index in range(1, len(self._chunks)):
                end = self._chunks[index - 1].end
                if end is None or end > self._starts[index]:
                    problem = f"chunks {self._chunks[index - 1].number} and {self._chunks[index].number} overlap"
                    raise CoverageError(f"interval map {self.name}: {problem}")
        return self._chunks

    @property
    def record(self) -> catalog.IntervalMapRecord:
        """The whole map in one message. It is built again, interval by interval, after each change."""
        if self._record is None:
            computation, topology = self.origin
            self._record = catalog.IntervalMapRecord(computation=computation, topology=topology, intervals=self)
        return self._record

    @property
    def intervals(self) -> tuple[KeyInterval, ...]:
        """The key intervals, in key order."""
        return tuple(interval_from_proto(interval.keys) for interval in self)

    def __iter__(self) -> Iterator[catalog.IntervalRecord]:
        """All intervals, in key order."""
        for chunk in self.chunks:
            yield from chunk.intervals

    def beginning_from(self, start: bytes) -> Iterator[catalog.IntervalRecord]:
        """The intervals that begin at ``start`` or after it, in key order."""
        chunks = self.chunks
        for chunk in chunks[max(bisect_right(self._starts, start) - 1, 0) :]:
            yield from (one for one in chunk.intervals if one.keys.start >= start)

    def __len__(self) -> int:
        """The number of intervals."""
        return len(self._journals)

    def chunk_of(self, key: bytes) -> IntervalChunk | None:
        """The chunk that contains ``key``, or None."""
        chunks = self.chunks
        index = bisect_right(self._starts, key) - 1
        if index < 0 or not (chunks[index].end is None or key < chunks[index].end):  # type: ignore[operator]
            return None
        return chunks[index]

    def locate(self, key: bytes) -> catalog.IntervalRecord | None:
        """The interval that contains ``key``. There is exactly one while any topology or log refers to the map."""
        chunk = self.chunk_of(key)
        return None if chunk is None else chunk.intervals[bisect_right(chunk.starts, key) - 1]

    def of_journal(self, journal: str) -> catalog.IntervalRecord | None:
        """The interval that writes to ``journal``, or None."""
        return self._journals.get(journal)

    def home(self, journal: str) -> int | None:
        """The number of a chunk with an interval that writes to ``journal``, or was created from it; else None."""
        interval = self._journals.get(journal)
        chunk = None if interval is None else self.chunk_of(interval.keys.start)
        if chunk is not None:
            return chunk.number
        return min(self._parents.get(journal, ()), default=None)

    @property
    def owned(self) -> Mapping[Owner, Mapping[str, catalog.IntervalRecord]]:
        """By owner: its intervals, by journal."""
        return self._owned

    def chunks_of(self, owners: Iterable[Owner]) -> list[IntervalChunk]:
        """The chunks with intervals of these owners, in key order. An empty result needs no scan of the map."""
        numbers = {self.home(journal) for owner in owners for journal in self._owned.get(owner, ())}
        return [chunk for chunk in self.chunks if chunk.number in numbers] if numbers else []

    def addresses(self) -> set[str]:
        """The addresses of the owners. An interval without an owner adds the empty address."""
        return {next(iter(intervals.values())).owner.address for intervals in self._owned.values()}


def _owner_of(interval: catalog.IntervalRecord) -> Owner:
    return interval.owner.worker_id, interval.owner_revision
