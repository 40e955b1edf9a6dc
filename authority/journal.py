"""The format of an authority shard's journal: entries with changes, and base parts that replace old entries (7.2).

A blob is one byte of format followed by a msgpack value in array form. A compatible change appends a field with a
default. Any other change needs a new format number. The store adds the checksum.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from millwheel.store.contract import CorruptValueError

__all__ = [
    "REMOVED_PART",
    "AcceptKeys",
    "AcceptProcess",
    "AuthorityEntry",
    "Change",
    "Expect",
    "KeysRow",
    "Part",
    "Percentile",
    "ProcessRow",
    "Remove",
    "decode_entry",
    "decode_part",
    "encode",
]

_ENTRY_FORMAT: Final = 1
_PART_FORMAT: Final = 1

REMOVED_PART: Final = "!removed"
"""The name of the part that lists removed groups. No group name begins with "!"."""


class KeysRow(msgspec.Struct, array_like=True, gc=False):
    """The watermark of one interval."""

    start: bytes
    end: bytes | None
    sequencer: int
    watermark: int


class ProcessRow(msgspec.Struct, array_like=True, gc=False):
    """The watermark of one injector process. ``last_report`` is the number of the last report that it includes."""

    process: str
    sequencer: int
    watermark: int
    idle: bool
    last_report: int = 0


class AcceptKeys(msgspec.Struct, array_like=True, tag=1):
    """A sequencer was accepted for an interval."""

    group: str
    row: KeysRow


class AcceptProcess(msgspec.Struct, array_like=True, tag=2):
    """A sequencer was accepted for an injector process."""

    group: str
    row: ProcessRow


class Expect(msgspec.Struct, array_like=True, tag=3):
    """The expected set of an injector was replaced. ``as_of`` is the coordinator's revision of the new set."""

    group: str
    processes: list[str]
    as_of: int = 0


class Remove(msgspec.Struct, array_like=True, tag=4):
    """A group was removed. For an injector, ``up_to`` is the largest sequencer of the removed incarnations.

    Zero means that this sequencer is unknown.
    """

    group: str
    up_to: int = 0


class Percentile(msgspec.Struct, array_like=True, tag=5):
    """A percentile watermark of a group was decided. ``basis_points`` are hundredths of a percent."""

    group: str
    basis_points: int
    watermark: int


Change: TypeAlias = AcceptKeys | AcceptProcess | Expect | Remove | Percentile


class AuthorityEntry(msgspec.Struct, array_like=True):
    """One append: the changes in order, then the reported values, then the values to broadcast."""

    changes: list[Change]
    keys: dict[str, list[KeysRow]]
    processes: dict[str, list[ProcessRow]]
    values: dict[str, int]


class Part(msgspec.Struct, array_like=True):
    """One part of a group's base. All parts of a group have the same value and expected set.

    ``removed``, ``ended``: see :class:`~millwheel.authority.registry.Registry`.
    """

    group: str
    value: int
    keys: list[KeysRow]
    processes: list[ProcessRow]
    expected: list[str]
    removed: list[str] = []
    percentiles: dict[int, int] = {}
    expected_as_of: int = 0
    ended: dict[str, int] = {}


_encoder = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(AuthorityEntry)
_parts = msgspec.msgpack.Decoder(Part)

Value = TypeVar("Value", AuthorityEntry, Part)


def encode(value: AuthorityEntry | Part) -> bytes:
    """Return the blob of ``value``."""
    made = bytearray((_ENTRY_FORMAT if isinstance(value, AuthorityEntry) else _PART_FORMAT,))
    _encoder.encode_into(value, made, 1)
    return bytes(made)


def decode_entry(blob: bytes, where: str) -> AuthorityEntry:
    """Return the entry in ``blob``. Raises CorruptValueError, which names ``where``, for a bad format."""
    return _decode(blob, where, _ENTRY_FORMAT, _entries)


def decode_part(blob: bytes, where: str) -> Part:
    """Return the part in ``blob``. Raises CorruptValueError, which names ``where``, for a bad format."""
    return _decode(blob, where, _PART_FORMAT, _parts)


def _decode(blob: bytes, where: str, known: int, decoder: msgspec.msgpack.Decoder[Value]) -> Value:
    if not blob or blob[0] != known:
        raise CorruptValueError(where, f"format {blob[:1].hex() or 'none'} is not {known:02x}, the one known here")
    try:
        return decoder.decode(memoryview(blob)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, str(error)) from error
