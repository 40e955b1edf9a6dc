"""Divided journal entries: parts hold the bytes, and a small entry names the parts (6.1.2; G2).

Entries that are too large for one append are divided.

Invariant: the journal's head names the parts of every divided entry above the truncation point. The append of the small
entry commits these parts. Before it they are unnamed: no takeover reads them, and the next owner deletes them. A part's
id has its writer's sequencer and the entry's commit, so no other owner or commit writes a part with that id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.interval.commits.parts import PART_BYTES
from millwheel.worker.interval.entry import encode
from millwheel.worker.journal import OwnedJournal
from millwheel.worker.messages import WriteParts

__all__ = [
    "ENTRY_PART",
    "DividedEntries",
    "base_parts",
    "divide",
    "entry_parts",
    "is_entry_part",
    "joined",
    "names_base",
]

ENTRY_PART: Final = "entry"

_FORMAT: Final = 2
"""The format number of a divided entry. A whole entry has another."""
_BEGINNING: Final = b"\x94\x02"
"""The first bytes of a divided entry: an array of four values, beginning with the format. A whole entry has more
values."""


class _Divided(msgspec.Struct, array_like=True, frozen=True):
    """The small entry that is appended instead of a divided one."""

    format: int
    sequencer: int
    """The sequencer of the owner that wrote the parts. It is in the parts' ids."""
    parts: int
    size: int
    """Total size of all parts in bytes."""


_FIRST_ENTRY_NUMBER: Final = 1 << 42
"""PartsWritten numbers of entries start here, to be distinct from those of bases, id segments and copies."""

_decoder = msgspec.msgpack.Decoder(_Divided)


def divide(blob: bytes, sequencer: int, commit: int, most: int) -> tuple[bytes, dict[PartId, bytes]]:
    """The small entry that represents ``blob``, and the parts that hold it, of at most ``most`` bytes each."""
    pieces = [blob[start : start + most] for start in range(0, len(blob), most)]
    parts = {_part(number, sequencer, commit): piece for number, piece in enumerate(pieces)}
    return encode(_Divided(_FORMAT, sequencer, len(pieces), len(blob))), parts


def joined(entry: bytes, commit: int, parts: Mapping[PartId, bytes], where: str) -> bytes:
    """The bytes of entry ``commit``, joined from ``parts`` if it is divided.

    Raises:
        CorruptValueError: The entry is damaged, or its parts are not complete.
    """
    if not entry.startswith(_BEGINNING):
        return entry
    try:
        divided = _decoder.decode(entry)
    except msgspec.DecodeError as error:
        raise CorruptValueError(where, f"not a divided entry: {error}") from error
    pieces: list[bytes] = []
    for number in range(divided.parts):
        part = _part(number, divided.sequencer, commit)
        if part not in parts:
            raise CorruptValueError(where, f"its part {part.name!r} is needed, and the journal's head does not name it")
        pieces.append(parts[part])
    whole = b"".join(pieces)
    if len(whole) != divided.size:
        raise CorruptValueError(where, f"its parts have {len(whole)} bytes, and {divided.size} are needed")
    return whole


def _part(number: int, sequencer: int, commit: int) -> PartId:
    return PartId(f"{ENTRY_PART}/{number}", sequencer, commit)


def is_entry_part(part: PartId) -> bool:
    """Whether the part belongs to a divided entry. Every other part belongs to the base."""
    return part.name.startswith(f"{ENTRY_PART}/")


def names_base(parts: Iterable[PartId]) -> bool:
    """Whether a head with these parts names a base. The head of a child may name none while its parents' heads do."""
    return not all(map(is_entry_part, parts))


def base_parts(parts: Iterable[PartId]) -> tuple[PartId, ...]:
    """The parts of a head that belong to the base."""
    return tuple(part for part in parts if not is_entry_part(part))


def entry_parts(parts: Iterable[PartId]) -> dict[int, tuple[PartId, ...]]:
    """The parts of a head that belong to divided entries, by commit."""
    found: dict[int, tuple[PartId, ...]] = {}
    for part in filter(is_entry_part, parts):
        found[part.commit] = (*found.get(part.commit, ()), part)
    return found


class DividedEntries:
    """Writes the parts of one large entry at a time.

    Invariant: an append starts only after every part that it names is acknowledged. An owner that is deposed in between
    leaves parts that no head names. The next owner deletes them.
    """

    def __init__(self, journal: OwnedJournal, entry_bytes: int) -> None:
        """``entry_bytes``: the maximum size of one append."""
        self._journal = journal
        self._most = min(entry_bytes, PART_BYTES)
        self._waiting: tuple[int, tuple[PartId, ...], tuple[int, bytes, int]] | None = None
        """The entry whose parts are being written: their number, their ids, and what ``written`` returns."""

    def write(self, commit: int, entry: bytes, size: int) -> WriteParts:
        """Write the parts of the entry. ``size``: that of ``OwnedJournal.append``."""
        small, parts = divide(entry, self._journal.sequencer, commit, self._most)
        number = _FIRST_ENTRY_NUMBER + commit
        self._waiting = number, tuple(parts), (commit, small, size)
        return WriteParts(self._journal.name, number, parts)

    def written(self, number: int) -> tuple[int, bytes, int] | None:
        """Parts are acknowledged. If they are those of the entry: its commit, the small entry to append, its size."""
        if self._waiting is None or self._waiting[0] != number:
            return None
        _, parts, small = self._waiting
        self._waiting = None
        self._journal.entry_parts[small[0]] = parts
        return small
