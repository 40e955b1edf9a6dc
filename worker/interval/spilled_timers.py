"""Spilled timers: timers far ahead that only the store holds, and what memory keeps of them (G6, G12, G13).

Spilled timers are in immutable base parts: *rows* in increasing time, and an *index* for each part of rows. A takeover
reads the index instead of the rows. The index has a fingerprint of eight bytes for each timer, and a Bloom filter is
checked before it. A *void* is a tombstone: it marks stored copies of a timer as deleted if they were set before a
position. It is written when a spilled timer is set or cancelled before its part is read.

Invariant: exactly one copy of each timer counts. The copy in the table in memory has priority. If there is none, a
stored copy counts if its position is not below a tombstone for it. Only a commit changes what counts (its timers set
and cleared), so a takeover that applies the same tombstones finds the same timers. Therefore code that sets or cancels
a timer that is not in the table must call ``SpilledTimers.void``.

Loading a part while a commit is in flight could break this: the load would drop a hold that only this commit may
release. So parts are loaded only between commits.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from millwheel.model.time import TimeDomain
from millwheel.store.contract import PartId
from millwheel.worker.dedup.segments import Front, dump_halves, load_halves
from millwheel.worker.interval.entry import TimerRow, VoidRow, decode_part, encode_part
from millwheel.worker.interval.holds import Holds

__all__ = ["SPILLED_PART", "SpilledPart", "SpilledTimers", "index_of", "is_spilled", "rows_of"]

SPILLED_PART = "far"
_ROWS = f"{SPILLED_PART}/rows/"
_INDEX = f"{SPILLED_PART}/index/"

_Name = tuple[bytes, bool, str]
"""Key, whether it is in processing time, tag."""


def _print(key: bytes, tag: str) -> int:
    """A timer's fingerprint: signed, as the filters require. Fingerprints of one key are adjacent."""
    return (crc32(key) << 32 | crc32(tag.encode())) - (1 << 63)


def rows_of(index: PartId) -> PartId:
    """The id of the part of rows that belongs to an index part."""
    return PartId(_ROWS + index.name.removeprefix(_INDEX), index.sequencer, index.commit)


def index_of(rows: PartId) -> PartId:
    """The id of the index part that belongs to a part of rows."""
    return PartId(_INDEX + rows.name.removeprefix(_ROWS), rows.sequencer, rows.commit)


def is_spilled(parts: Iterable[PartId]) -> bool:
    """Whether these parts, which were requested together, are rows of spilled timers."""
    return any(part.name.startswith(_ROWS) for part in parts)


class SpilledPart:
    """One stored part of spilled timers of one time domain.

    ``hold`` is the least timestamp at which one of its timers holds the output watermark besides its own time. None: no
    timer does.
    """

    __slots__ = ("count", "domain", "first", "hold", "prints", "rows", "voids")

    def __init__(self, rows: PartId, domain: TimeDomain, first: int, hold: int | None, prints: array[int]) -> None:
        self.rows = rows
        self.domain = domain
        self.first = first
        self.hold = hold
        self.prints = prints
        self.count = len(prints)
        self.voids: set[_Name] = set()
        """Tombstones for timers that may be in this part."""

    @classmethod
    def from_rows(
        cls, number: int, sequencer: int, commit: int, rows: Sequence[TimerRow], hold: int | None
    ) -> SpilledPart:
        """Create the part for ``rows``, which are of one time domain and in increasing time."""
        part = PartId(f"{_ROWS}{number}", sequencer, commit)
        prints = array("q", sorted(_print(row[0], row[2]) for row in rows))
        return cls(part, TimeDomain(rows[0][1]), rows[0][3], hold, prints)

    def encode(self) -> bytes:
        """The index as stored."""
        return encode_part((self.domain is TimeDomain.PROCESSING_TIME, self.first, self.hold, dump_halves(self.prints)))

    @classmethod
    def decode(cls, index: PartId, blob: bytes, where: str) -> SpilledPart:
        """The part whose index is stored as ``blob``."""
        processing, first, hold, prints = decode_part(blob, tuple[bool, int, int | None, bytes], where)
        return cls(rows_of(index), TimeDomain(processing), first, hold, load_halves(prints))

    def may_have(self, printed: int) -> bool:
        """Whether a timer with this fingerprint is in the part."""
        at = bisect_left(self.prints, printed)
        return at < self.count and self.prints[at] == printed

    def may_have_key(self, key: bytes) -> bool:
        """Whether a timer of ``key`` is in the part. False positives are possible."""
        low = (crc32(key) << 32) - (1 << 63)
        at = bisect_left(self.prints, low)
        return at < self.count and self.prints[at] < low + (1 << 32)


class SpilledTimers:
    """The parts that have not been loaded, and the tombstones for them.

    They cost nothing while ``parts`` is empty.

    Invariant: each part with a hold has a stated hold there (G7).
    """

    __slots__ = ("_front", "_holds", "_voids", "count", "first", "parts")

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self.parts: dict[PartId, SpilledPart] = {}
        """By the ids of their rows."""
        self.count = 0
        """The number of timers in the parts, including deleted ones."""
        self.first: dict[TimeDomain, int | None] = dict.fromkeys(TimeDomain)
        """A lower bound of the times of all spilled timers of each domain. None: there are none."""
        self._front = Front()
        self._voids: dict[_Name, tuple[int, int]] = {}
        """By timer: copies at positions below the first number are deleted. The second number counts the parts that may
        have one."""

    def of_domain(self, domain: TimeDomain) -> list[SpilledPart]:
        """The parts of one domain, ordered by their first times."""
        return sorted((part for part in self.parts.values() if part.domain is domain), key=lambda part: part.first)

    def holding(self) -> Iterator[SpilledPart]:
        """The parts with a timer that holds the output watermark besides its own time."""
        return (part for part in self.parts.values() if part.hold is not None)

    def parts_of(self, key: bytes) -> list[PartId]:
        """The ids of the rows that must be read to know the spilled timers of ``key``."""
        return [part.rows for part in self.parts.values() if part.may_have_key(key)]

    def add(self, part: SpilledPart) -> None:
        """Add a part. From now on its timers count, unless a tombstone deletes them."""
        self.parts[part.rows] = part
        if part.hold is not None:
            self._holds.begin(part.hold)
        self.count += part.count
        self._front.cover(str(part.rows), part.prints, self.count)
        self._find_first(part.domain)

    def void(self, key: bytes, domain: TimeDomain, tag: str, below: int) -> bool:
        """Delete stored copies of the timer at positions below ``below``. Returns whether there may be one."""
        printed = _print(key, tag)
        if not self.parts or not self._front.may_have(printed):
            return False
        name = key, domain is TimeDomain.PROCESSING_TIME, tag
        hit = False
        for part in self.parts.values():
            if part.domain is domain and part.may_have(printed):
                hit = True
                before, parts = self._voids.get(name, (0, 0))
                self._voids[name] = max(before, below), parts + (name not in part.voids)
                part.voids.add(name)
        return hit

    def current_rows(self, rows: Iterable[TimerRow]) -> list[TimerRow]:
        """Those rows of a part that no tombstone deletes."""
        voids = self._voids
        if not voids:
            return list(rows)
        return [row for row in rows if (void := voids.get(row[:3])) is None or row[6] >= void[0]]

    def remove(self, part: SpilledPart) -> None:
        """Remove a part whose timers have been loaded into memory."""
        del self.parts[part.rows]
        if part.hold is not None:
            self._holds.end(part.hold, None)
        self.count -= part.count
        self._front.drop(str(part.rows))
        for name in part.voids:
            below, parts = self._voids[name]
            if parts == 1:
                del self._voids[name]
            else:
                self._voids[name] = below, parts - 1
        self._find_first(part.domain)

    @property
    def void_count(self) -> int:
        """The number of tombstones."""
        return len(self._voids)

    def void_rows(self) -> list[VoidRow]:
        """The tombstones as a base part stores them."""
        return [(*name, below) for name, (below, _) in self._voids.items()]

    def _find_first(self, domain: TimeDomain) -> None:
        self.first[domain] = min((part.first for part in self.parts.values() if part.domain is domain), default=None)
