"""The stored formats of a log: journal entries, the base's meta part, and segment rows.

All are MessagePack arrays that begin with their format number. A reader refuses an unknown format and names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from millwheel.rpc.packed_values import stored_form
from millwheel.store.contract import CorruptValueError
from millwheel.worker.log.cursors import CursorFacts
from millwheel.worker.log.letters import LetterChange, LetterFacts

__all__ = ["LOG_ENTRY_FORMAT", "LogEntry", "LogMeta", "SegmentBlob", "SegmentFacts", "decode", "encode", "row_key"]

LOG_ENTRY_FORMAT: Final = 1

SegmentFacts = tuple[int, int, int, int, int, int]
"""(first, end, size, age, watermark, commit): a segment in the base."""


class LogEntry(msgspec.Struct, array_like=True, frozen=True):
    """The changes of one commit. A base with its entries applied in order is the log's exact state (G2, G12)."""

    format: int
    watermark: int
    """The input watermark at sealing. No record of this or a later entry is below it, except late ones."""
    age: int
    """How long the log had been served when the entry was sealed, in microseconds. Retention is measured by it."""
    first: int
    """The offset of the first record."""
    values: Sequence[bytes]
    """A list, or ``PackedValues``, which are stored alike."""
    timestamps: list[int]
    cuts: list[int]
    """Offsets at which a segment ends. They are journaled, so that every owner has the same segments."""
    start: int
    """The oldest offset that is kept after this commit."""
    cursors: list[tuple[str, int]]
    """New and moved cursors with their ACKed offsets, applied after ``deleted``. The entry that creates a cursor
    numbers its life: the number is that of the commit."""
    deleted: list[str]
    ids: list[Any]
    """The consumed records' ids, as the duplicate check encodes them."""
    counts: tuple[int, int, int]
    """Records, duplicates and late records of this commit."""
    letters: list[LetterChange] = []
    """What people have done with dead letters, in order."""


class LogMeta(msgspec.Struct, array_like=True, frozen=True):
    """The base part with everything small. The records below ``end`` are in the segment rows that it lists."""

    format: int
    watermark: int
    age: int
    end: int
    cursors: list[CursorFacts]
    segments: list[SegmentFacts]
    counts: tuple[int, int, int]
    letters: LetterFacts = (0, [])
    letters_begun: int = 0
    """How many letters have begun in their last batch."""


class SegmentBlob(msgspec.Struct, array_like=True, frozen=True):
    """One segment row: records from ``first`` on, and the watermarks with the offsets from which they applied."""

    format: int
    first: int
    values: Sequence[bytes]
    timestamps: list[int]
    mark_offsets: list[int]
    mark_values: list[int]


Blob = TypeVar("Blob", LogEntry, LogMeta, SegmentBlob)

encode = msgspec.msgpack.Encoder(enc_hook=stored_form).encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    type_: msgspec.msgpack.Decoder(type_) for type_ in (LogEntry, LogMeta, SegmentBlob)
}


def decode(blob: bytes, type_: type[Blob], where: str) -> Blob:
    """Decode ``blob``.

    Raises:
        CorruptValueError: Names ``where`` if the blob has another type or format.
    """
    try:
        value: Blob = _decoders[type_].decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a {type_.__name__}: {error}") from error
    if value.format != LOG_ENTRY_FORMAT:
        raise CorruptValueError(
            where, f"{type_.__name__} of format {value.format}; this version reads format {LOG_ENTRY_FORMAT}"
        )
    return value


def row_key(first: int) -> bytes:
    """The row key of the segment that begins at ``first``. Rows sort as offsets do."""
    return first.to_bytes(8, "big")
