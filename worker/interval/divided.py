"""Journal entries larger than one append may be: their bytes are in parts, and a small entry names these (6.1.2; G2).

Invariant: the journal's head names the parts of every divided entry above the floor. The append of the small entry is
what commits them. Before it they are unnamed, and no takeover reads them; the next owner deletes them. A part's id has
its writer's sequencer and the entry's commit, so no other owner and no other commit writes a part of that id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.interval.entry import encode

__all__ = ["ENTRY_PART", "base_parts", "divide", "entry_parts", "is_entry_part", "joined", "names_base"]

ENTRY_PART: Final = "entry"

_FORMAT: Final = 2
"""The format number of a divided entry, where a whole one has 1."""
_BEGINNING: Final = b"\x94\x02"
"""How a divided entry begins: an array of four values, of which the format is the first. A whole entry has more."""


class _Divided(msgspec.Struct, array_like=True, frozen=True):
    """What is appended in the place of an entry that is divided."""

    format: int
    sequencer: int
    """Of the owner that wrote the parts: a part of their ids."""
    parts: int
    size: int
    """Bytes in all the parts together."""


_decoder = msgspec.msgpack.Decoder(_Divided)


def divide(blob: bytes, sequencer: int, commit: int, most: int) -> tuple[bytes, dict[PartId, bytes]]:
    """The small entry that stands for ``blob``, and the parts that hold it, of at most ``most`` bytes each."""
    pieces = [blob[start : start + most] for start in range(0, len(blob), most)]
    parts = {_part(number, sequencer, commit): piece for number, piece in enumerate(pieces)}
    return encode(_Divided(_FORMAT, sequencer, len(pieces), len(blob))), parts


def joined(entry: bytes, commit: int, parts: Mapping[PartId, bytes], where: str) -> bytes:
    """The bytes of entry ``commit``, from ``parts`` if it is divided. CorruptValueError if they are not all there."""
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
    """Whether the part is of a divided entry. Every other part belongs to the base."""
    return part.name.startswith(f"{ENTRY_PART}/")


def names_base(parts: Iterable[PartId]) -> bool:
    """Whether a head that names these parts names a base. The head of a child need not: its parents' do."""
    return not all(map(is_entry_part, parts))


def base_parts(parts: Iterable[PartId]) -> tuple[PartId, ...]:
    """Those of the parts named by a head that belong to the base."""
    return tuple(part for part in parts if not is_entry_part(part))


def entry_parts(parts: Iterable[PartId]) -> dict[int, tuple[PartId, ...]]:
    """Those of the parts named by a head that belong to divided entries, by commit."""
    found: dict[int, tuple[PartId, ...]] = {}
    for part in filter(is_entry_part, parts):
        found[part.commit] = (*found.get(part.commit, ()), part)
    return found
