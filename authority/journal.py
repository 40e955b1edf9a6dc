"""What an authority shard journals: entries of changes, and base parts that spare a restart the old ones (7.2).

Blobs are one byte of format and a msgpack value in array form. Fields are only ever appended, with a
default; any other change takes a new format. The store adds the checksum.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeVar

import msgspec

from millwheel.store.contract import CorruptValueError

__all__ = [
    "REMOVED_PART",
    "ROW_BYTES",
    "AcceptKeys",
    "AcceptProcess",
    "Change",
    "Entry",
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
"""The name of the part with the computations that were removed; no computation begins with "!"."""

ROW_BYTES: Final = 32
"""About what a row takes besides its keys or name."""


class KeysRow(msgspec.Struct, array_like=True, gc=False):
    """The value of one interval."""

    start: bytes
    end: bytes | None
    sequencer: int
    watermark: int

    def size(self) -> int:
        """About how many bytes it takes."""
        return ROW_BYTES + len(self.start) + len(self.end or b"")


class ProcessRow(msgspec.Struct, array_like=True, gc=False):
    """The value of one injector process, and the number of the last report that it rests on."""

    process: str
    sequencer: int
    watermark: int
    idle: bool
    heard: int = 0

    def size(self) -> int:
        """About how many bytes it takes."""
        return ROW_BYTES + len(self.process)


class AcceptKeys(msgspec.Struct, array_like=True, tag=1):
    """A sequencer was accepted for an interval."""

    computation: str
    row: KeysRow


class AcceptProcess(msgspec.Struct, array_like=True, tag=2):
    """A sequencer was accepted for an injector process."""

    computation: str
    row: ProcessRow


class Expect(msgspec.Struct, array_like=True, tag=3):
    """An injector's expected set was replaced, by what the coordinator said at a revision."""

    computation: str
    processes: list[str]
    as_of: int = 0


class Remove(msgspec.Struct, array_like=True, tag=4):
    """A computation was removed; of an injector the lives of which ``up_to`` is the largest sequencer (0: unknown)."""

    computation: str
    up_to: int = 0


class Percentile(msgspec.Struct, array_like=True, tag=5):
    """The watermark of a percentile (in hundredths of a percent) of a computation was decided."""

    computation: str
    basis_points: int
    watermark: int


Change: TypeAlias = AcceptKeys | AcceptProcess | Expect | Remove | Percentile


class Entry(msgspec.Struct, array_like=True):
    """One append: the changes in their order, then the values reported, then the values to broadcast."""

    changes: list[Change]
    keys: dict[str, list[KeysRow]]
    processes: dict[str, list[ProcessRow]]
    values: dict[str, int]


class Part(msgspec.Struct, array_like=True):
    """A piece of one computation's base; all its pieces have the same value and expected set.

    ``removed``, ``ended``: see :class:`~millwheel.authority.registry.Registry`.
    """

    computation: str
    value: int
    keys: list[KeysRow]
    processes: list[ProcessRow]
    expected: list[str]
    removed: list[str] = []
    percentiles: dict[int, int] = {}
    expected_as_of: int = 0
    ended: dict[str, int] = {}


_encoder = msgspec.msgpack.Encoder()
_entries = msgspec.msgpack.Decoder(Entry)
_parts = msgspec.msgpack.Decoder(Part)

Value = TypeVar("Value", Entry, Part)


def encode(value: Entry | Part) -> bytes:
    """The blob of ``value``."""
    made = bytearray((_ENTRY_FORMAT if isinstance(value, Entry) else _PART_FORMAT,))
    _encoder.encode_into(value, made, 1)
    return bytes(made)


def decode_entry(blob: bytes, where: str) -> Entry:
    """The entry in ``blob``; CorruptValueError naming ``where`` it was read if it is none of this format."""
    return _decode(blob, where, _ENTRY_FORMAT, _entries)


def decode_part(blob: bytes, where: str) -> Part:
    """The part in ``blob``; CorruptValueError naming ``where`` it was read if it is none of this format."""
    return _decode(blob, where, _PART_FORMAT, _parts)


def _decode(blob: bytes, where: str, known: int, decoder: msgspec.msgpack.Decoder[Value]) -> Value:
    if not blob or blob[0] != known:
        raise CorruptValueError(where, f"format {blob[:1].hex() or 'none'} is not {known:02x}, the one known here")
    try:
        return decoder.decode(memoryview(blob)[1:])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, str(error)) from error
