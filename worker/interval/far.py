"""Timers that are far ahead, and in the store alone: what memory keeps of them (design §5; G6, G12, G13).

They stand in immutable base parts: *rows*, by increasing time, and beside them an *index*, which a takeover
reads in their stead. A key's timers are found by fingerprints of eight bytes each, behind a Bloom filter. What
becomes of a stored timer before its part is read is a *void*: copies of it that were set before are no more.

Invariant: of each timer exactly one copy counts: that in the table of memory, or, if there is none, that of a
part whose position is not below a void for it. What counts never changes but by a commit (its timers set and
cleared), so a takeover that puts the same voids finds the same timers. Whoever sets or cancels a timer that is not
in the table must therefore ask here. Who could break it: a part that is read while a commit is in flight would
drop a hold that only this commit may let go of; so parts are taken in between commits alone.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from millwheel.store.contract import PartId
from millwheel.worker.dedup.segments import Front, dump_halves, load_halves
from millwheel.worker.interval.entry import TimerRow, VoidRow, decode_part, encode_part

__all__ = ["FAR_PART", "FarPart", "FarTimers", "index_of", "is_far", "rows_of"]

FAR_PART = "far"
_ROWS = f"{FAR_PART}/rows/"
_INDEX = f"{FAR_PART}/index/"

_Name = tuple[bytes, bool, str]
"""key, wall, tag."""


def _print(key: bytes, tag: str) -> int:
    """A timer's fingerprint; those of a key stand together. Signed, as the filters take it."""
    return (crc32(key) << 32 | crc32(tag.encode())) - (1 << 63)


def rows_of(index: PartId) -> PartId:
    """The rows of an index part."""
    return PartId(_ROWS + index.name.removeprefix(_INDEX), index.sequencer, index.commit)


def index_of(rows: PartId) -> PartId:
    """The index of a part of rows."""
    return PartId(_INDEX + rows.name.removeprefix(_ROWS), rows.sequencer, rows.commit)


def is_far(parts: Iterable[PartId]) -> bool:
    """Whether these parts, which were asked for together, are rows of far timers."""
    return any(part.name.startswith(_ROWS) for part in parts)


class FarPart:
    """One stored part, of one time domain. ``hold``: the least at which one of its timers holds the output watermark
    besides its own time; None if none does."""

    __slots__ = ("count", "first", "hold", "prints", "rows", "voids", "wall")

    def __init__(self, rows: PartId, wall: bool, first: int, hold: int | None, prints: array[int]) -> None:
        self.rows = rows
        self.wall = wall
        self.first = first
        self.hold = hold
        self.prints = prints
        self.count = len(prints)
        self.voids: set[_Name] = set()
        """What is void and may be in it."""

    @classmethod
    def of(cls, number: int, sequencer: int, commit: int, rows: Sequence[TimerRow], hold: int | None) -> FarPart:
        """A part of ``rows``, which are of one domain and in increasing time."""
        part = PartId(f"{_ROWS}{number}", sequencer, commit)
        prints = array("q", sorted(_print(row[0], row[2]) for row in rows))
        return cls(part, rows[0][1], rows[0][3], hold, prints)

    def encode(self) -> bytes:
        """The index as stored."""
        return encode_part((self.wall, self.first, self.hold, dump_halves(self.prints)))

    @classmethod
    def decode(cls, index: PartId, blob: bytes, where: str) -> FarPart:
        """The part whose index is stored as ``blob``."""
        wall, first, hold, prints = decode_part(blob, tuple[bool, int, int | None, bytes], where)
        return cls(rows_of(index), wall, first, hold, load_halves(prints))

    def may_have(self, printed: int) -> bool:
        """Whether a timer of this fingerprint is in it."""
        at = bisect_left(self.prints, printed)
        return at < self.count and self.prints[at] == printed

    def may_have_key(self, key: bytes) -> bool:
        """Whether a timer of ``key``, likely, is in it."""
        low = (crc32(key) << 32) - (1 << 63)
        at = bisect_left(self.prints, low)
        return at < self.count and self.prints[at] < low + (1 << 32)


class FarTimers:
    """The parts that have not been read, and the voids that concern them. Empty, it is falsy and costs nothing."""

    __slots__ = ("_firsts", "_front", "_voids", "count", "parts")

    def __init__(self) -> None:
        self.parts: dict[PartId, FarPart] = {}
        """By their rows."""
        self.count = 0
        """Timers in the parts, those that are void included."""
        self._firsts: dict[bool, int | None] = {False: None, True: None}
        self._front = Front()
        self._voids: dict[_Name, tuple[int, int]] = {}
        """Copies at positions below the first number are void; so many parts may have one."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def first(self, wall: bool) -> int | None:
        """No timer of that domain is stored for an earlier time; None: none is stored."""
        return self._firsts[wall]

    def of_domain(self, wall: bool) -> list[FarPart]:
        """The parts of one domain, by their first times."""
        return sorted((part for part in self.parts.values() if part.wall is wall), key=lambda part: part.first)

    def holding(self) -> Iterator[FarPart]:
        """The parts that state holds."""
        return (part for part in self.parts.values() if part.hold is not None)

    def parts_of(self, key: bytes) -> list[PartId]:
        """The rows that have to be read to know the stored timers of ``key``."""
        return [part.rows for part in self.parts.values() if part.may_have_key(key)]

    def add(self, part: FarPart) -> None:
        """From now on the timers of this part count, unless void."""
        self.parts[part.rows] = part
        self.count += part.count
        self._front.cover(str(part.rows), part.prints, self.count)
        self._find_first(part.wall)

    def void(self, key: bytes, wall: bool, tag: str, below: int) -> bool:
        """Copies of the timer at positions below ``below`` are no more; returns whether there may be one."""
        printed = _print(key, tag)
        if not self.parts or not self._front.may_have(printed):
            return False
        name = key, wall, tag
        hit = False
        for part in self.parts.values():
            if part.wall is wall and part.may_have(printed):
                hit = True
                before, parts = self._voids.get(name, (0, 0))
                self._voids[name] = max(before, below), parts + (name not in part.voids)
                part.voids.add(name)
        return hit

    def standing(self, rows: Iterable[TimerRow]) -> list[TimerRow]:
        """Those of the rows of a part that are not void."""
        voids = self._voids
        if not voids:
            return list(rows)
        return [row for row in rows if (void := voids.get(row[:3])) is None or row[6] >= void[0]]

    def remove(self, part: FarPart) -> None:
        """The part's timers have been taken into memory: it does not count any more."""
        del self.parts[part.rows]
        self.count -= part.count
        self._front.drop(str(part.rows))
        for name in part.voids:
            below, parts = self._voids[name]
            if parts == 1:
                del self._voids[name]
            else:
                self._voids[name] = below, parts - 1
        self._find_first(part.wall)

    @property
    def void_count(self) -> int:
        """How many voids there are."""
        return len(self._voids)

    def void_rows(self) -> list[VoidRow]:
        """The voids, as a base part stores them."""
        return [(*name, below) for name, (below, _) in self._voids.items()]

    def _find_first(self, wall: bool) -> None:
        self._firsts[wall] = min((part.first for part in self.parts.values() if part.wall is wall), default=None)
