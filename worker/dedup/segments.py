"""Sealed id segments: ids that went to the store, and the filters that tell when to read them (6.1.1).

Two layers of Bloom filters. The *front* covers many segments at once and lives only in this process, so
it may use Python's own (seeded, fast) hash. Each segment's own filter is stored beside its ids,
so that a takeover reads filters and no ids, and says which segments to read when the front hits.
"""

from __future__ import annotations

import operator
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rbloom import Bloom

from millwheel.worker.dedup.ids import ID_BYTES, split_ids

__all__ = ["Front", "Segment", "SegmentCache", "SegmentSealed", "candidates"]

_FRONT_ERROR: Final = 1e-3
_SEGMENT_ERROR: Final = 1e-4
"""Together a fresh id causes a read about once in ten million segment checks; a segment alone, once in 10,000."""
_FRONT_SEGMENTS: Final = 4
"""A front filter is made for this many segments of the size of its first."""


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """Two base parts to be written; then ``segment_stored(name)``."""

    name: str
    computation: str
    ids: bytes
    """The ids, one after the other: read again only where the filters hit."""
    filter: bytes
    """Read at takeover."""


def _filter_key(id_: bytes) -> int:
    """What a segment's filter hashes: the second half of the id, which is as random as the whole."""
    return int.from_bytes(id_[8:], "little", signed=True)


def _filter_keys(blob: bytes) -> array[int]:
    halves = array("q")
    halves.frombytes(blob)
    return halves[1::2]


class Segment:
    """A sealed segment. ``ids`` stay in memory until the store has them."""

    __slots__ = ("collect", "count", "filter", "ids", "name")

    def __init__(self, name: str, collect: int, count: int, filter_: Bloom, ids: set[bytes] | None) -> None:
        self.name = name
        self.collect = collect
        """May be forgotten once the collection horizon is above it."""
        self.count = count
        self.filter = filter_
        self.ids = ids

    @classmethod
    def seal(cls, name: str, collect: int, ids: set[bytes]) -> tuple[Segment, bytes]:
        """A segment of ``ids``, and their blob."""
        blob = b"".join(ids)
        filter_ = Bloom(len(ids), _SEGMENT_ERROR, operator.index)
        filter_.update(_filter_keys(blob))
        return cls(name, collect, len(ids), filter_, ids), blob

    @classmethod
    def load(cls, name: str, collect: int, count: int, stored_filter: bytes) -> Segment:
        """A segment of which only the filter is in memory."""
        return cls(name, collect, count, Bloom.load_bytes(stored_filter, operator.index), None)


class _Generation:
    __slots__ = ("capacity", "filter", "size", "unexpired")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.filter = Bloom(capacity, _FRONT_ERROR)
        self.size = 0
        self.unexpired: set[str] = set()


class Front:
    """Which of these ids may be in some covered segment? Generations go when their last segment is collected."""

    __slots__ = ("_generations",)

    def __init__(self) -> None:
        self._generations: list[_Generation] = []

    def cover(self, name: str, ids: set[bytes], total: int) -> None:
        """Add a segment's ids; ``total`` ids are sealed in all, which sets the size of a new generation."""
        generation = self._generations[-1] if self._generations else None
        if generation is None or generation.size + len(ids) > generation.capacity:
            generation = _Generation(max(_FRONT_SEGMENTS * len(ids), total // 2))
            self._generations.append(generation)
        generation.filter.update(ids)
        generation.size += len(ids)
        generation.unexpired.add(name)

    def drop(self, name: str) -> None:
        """The segment is collected."""
        for generation in self._generations:
            generation.unexpired.discard(name)
        self._generations = [generation for generation in self._generations if generation.unexpired]

    def covers(self, name: str) -> bool:
        """Whether the segment's ids have been added."""
        return any(name in generation.unexpired for generation in self._generations)

    def hits(self, ids: Sequence[bytes]) -> set[bytes]:
        """Those of the ids that may be in a covered segment."""
        found: set[bytes] = set()
        for generation in self._generations:
            found.update(filter(generation.filter.__contains__, ids))
        return found

    @property
    def bytes_held(self) -> int:
        """Memory of the filters."""
        return sum(generation.filter.size_in_bits // 8 for generation in self._generations)


class SegmentCache:
    """The segments read last. Few look-ups search the blob; many make a set of it once."""

    __slots__ = ("_blobs", "_looked", "_sets", "capacity")

    _SEARCHES: Final = 64

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._sets: dict[str, frozenset[bytes]] = {}
        self._looked: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._blobs

    def add(self, blobs: Mapping[str, bytes]) -> None:
        """Keep newly read segments."""
        self._blobs.update(blobs)

    def trim(self) -> None:
        """Let go of those above capacity that were used longest ago."""
        while len(self._blobs) > self.capacity:
            self.discard(next(iter(self._blobs)))

    def discard(self, name: str) -> None:
        """Forget a segment."""
        self._blobs.pop(name, None)
        self._sets.pop(name, None)
        self._looked.pop(name, None)

    def has(self, name: str, id_: bytes) -> bool:
        """Whether the cached segment has the id."""
        members = self._sets.get(name)
        if members is not None:
            return id_ in members
        self._blobs.move_to_end(name)
        looked = self._looked[name] = self._looked.get(name, 0) + 1
        if looked > self._SEARCHES:
            members = self._sets[name] = frozenset(split_ids(self._blobs[name]))
            return id_ in members
        return _search(self._blobs[name], id_)

    @property
    def bytes_held(self) -> int:
        """Memory of blobs and sets."""
        return sum(map(len, self._blobs.values())) + sum(120 * len(members) for members in self._sets.values())


def _search(blob: bytes, id_: bytes) -> bool:
    at = blob.find(id_)
    while at >= 0 and at % ID_BYTES:
        at = blob.find(id_, at + 1)
    return at >= 0


def candidates(segments: Iterable[Segment], id_: bytes) -> tuple[str, ...]:
    """The stored segments whose own filter has the id."""
    key = _filter_key(id_)
    return tuple(segment.name for segment in segments if segment.ids is None and key in segment.filter)
