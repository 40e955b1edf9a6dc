"""Sealed id segments: ids that are in the store, and the filters that decide when to read them (6.1.1).

There are two layers of filters. The *front* is a few Bloom filters over the ids of all segments. It stops all but one
in 100,000 fresh ids. If the front hits, fingerprints of four bytes per id select the segments to read. By calculation,
a fresh id then causes less than one read in 100 million checks, at a million ids. Both layers are built from the second
halves of the ids, which are stored beside them. So a takeover reads the halves, and no ids.

A Bloom filter per segment would need three bytes per id instead of four. But it cannot be enumerated to fill the front
at a takeover, and filling it costs several times as much.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rbloom import Bloom

from millwheel.model.deliveries import split_ids

__all__ = ["Front", "IdSegment", "SegmentCache", "SegmentSealed", "dump_halves", "halves", "load_halves"]

_FRONT_ERROR: Final = 1e-5
_FRONT_SEGMENTS: Final = 4
"""A front filter has room for this many segments of the size of its first one."""


@dataclass(frozen=True, slots=True)
class SegmentSealed:
    """Two base parts that the caller writes. Then the caller calls ``segment_stored(name)``."""

    name: str
    group: str
    ids: bytes
    """The concatenated ids. They are read again only if the filters hit."""
    filter: bytes
    """Read at takeover."""


def halves(blob: bytes) -> array[int]:
    """The second half of each id of a blob, as an int. The filters are built from it."""
    return load_halves(blob)[1::2]


def dump_halves(known: array[int]) -> bytes:
    """The stored form of halves: little-endian on every machine."""
    return known.tobytes() if sys.byteorder == "little" else _swapped(known).tobytes()


def load_halves(stored: bytes) -> array[int]:
    """Decode what ``dump_halves`` returned."""
    words = array("q")
    words.frombytes(stored)
    return words if sys.byteorder == "little" else _swapped(words)


def _swapped(words: array[int]) -> array[int]:
    copy = array("q", words)
    copy.byteswap()
    return copy


class IdSegment:
    """A sealed segment. Its ``ids`` stay in memory until the store has them. Then only four bytes of each id stay."""

    __slots__ = ("_asked", "_prints", "_sorted", "collect", "count", "ids", "name")

    _SEARCHES: Final = 32

    def __init__(self, name: str, collect: int, known: array[int], ids: set[bytes] | None) -> None:
        self.name = name
        self.collect = collect
        """The segment may be forgotten once the collection horizon is above it."""
        self.count = len(known)
        self.ids = ids
        self._prints = array("I", known.tobytes())[::2]
        self._sorted = False
        self._asked = 0

    def may_have(self, half: int) -> bool:
        """Whether an id has the fingerprint of ``half``. Sorts the fingerprints after ``_SEARCHES`` calls."""
        wanted = array("I", array("q", (half,)).tobytes())[0]
        if not self._sorted:
            self._asked += 1
            if self._asked <= self._SEARCHES:
                return _find(self._prints.tobytes(), array("I", (wanted,)).tobytes())
            self._prints = array("I", sorted(self._prints))
            self._sorted = True
        at = bisect_left(self._prints, wanted)
        return at < len(self._prints) and self._prints[at] == wanted


def _find(blob: bytes, item: bytes) -> bool:
    """Whether ``item`` is in ``blob`` at a multiple of its length."""
    at = blob.find(item)
    while at >= 0 and at % len(item):
        at = blob.find(item, at + 1)
    return at >= 0


class _Generation:
    __slots__ = ("capacity", "filter", "size", "unexpired")

    def __init__(self, capacity: int, filter_: Bloom) -> None:
        self.capacity = capacity
        self.filter = filter_
        self.size = 0
        self.unexpired: set[str] = set()


class Front:
    """Bloom filters over all segments. A generation is dropped when its last segment is collected."""

    __slots__ = ("_generations",)

    def __init__(self) -> None:
        self._generations: list[_Generation] = []

    def cover(self, name: str, known: array[int], total: int) -> None:
        """Add a segment's halves. ``total``, the number of all sealed ids, determines the size of a new generation."""
        generation = self._generations[-1] if self._generations else None
        if generation is None or generation.size + len(known) > generation.capacity:
            capacity = max(_FRONT_SEGMENTS * len(known), total // 2)
            generation = _Generation(capacity, Bloom(capacity, _FRONT_ERROR))
            self._generations.append(generation)
        generation.filter.update(known)
        generation.size += len(known)
        generation.unexpired.add(name)

    def drop(self, name: str) -> None:
        """The segment is collected."""
        for generation in self._generations:
            generation.unexpired.discard(name)
        self._generations = [generation for generation in self._generations if generation.unexpired]

    def hits(self, ids: Sequence[bytes]) -> dict[bytes, int]:
        """The ids that may be in a segment, with their second halves."""
        known = halves(b"".join(ids)).tolist()
        found: set[int] = set()
        for generation in self._generations:
            found.update(filter(generation.filter.__contains__, known))
        if not found:
            return {}
        return {id_: half for id_, half in zip(ids, known, strict=True) if half in found}

    def may_have(self, half: int) -> bool:
        """Whether a segment may have this half."""
        return any(half in generation.filter for generation in self._generations)

    def adopt(self, other: Front) -> None:
        """Copy the filters of ``other`` into this one."""
        for generation in other._generations:
            copy = _Generation(generation.capacity, generation.filter.copy())
            copy.size = generation.size
            copy.unexpired = set(generation.unexpired)
            self._generations.insert(0, copy)


class SegmentCache:
    """The segments read most recently. Look-ups search the blob. After ``_SEARCHES`` look-ups it becomes a set."""

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
        """Add segments that were just read."""
        self._blobs.update(blobs)

    def trim(self) -> None:
        """Drop the least recently used segments above the capacity."""
        while len(self._blobs) > self.capacity:
            self.discard(next(iter(self._blobs)))

    def discard(self, name: str) -> None:
        """Drop a segment."""
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
        return _find(self._blobs[name], id_)
