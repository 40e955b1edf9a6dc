"""The bytes of a log: journal entries, the base's meta part, and segment rows.

All are MessagePack arrays that begin with their format number. A reader that meets a newer format
refuses it by name instead of guessing.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from millwheel.store.contract import CorruptValueError
from millwheel.worker.log.cursors import CursorFacts

__all__ = ["FORMAT", "LogEntry", "LogMeta", "SegmentBlob", "SegmentFacts", "decode", "encode", "row_key"]

FORMAT: Final = 1

SegmentFacts = tuple[int, int, int, int, int, int]
"""first, end, size, age, watermark, commit: a segment as the base lists it."""


class LogEntry(msgspec.Struct, array_like=True, frozen=True):
    """What one commit changed. Applied in order onto a base, entries give the log's exact state (G2, G12)."""

    format: int
    watermark: int
    """The input watermark when it was sealed: no record of this entry or a later one is below it, late ones aside."""
    age: int
    """For how long the log had been served when it was sealed, in microseconds: retention counts by it."""
    first: int
    """The offset of the first record."""
    values: list[bytes]
    timestamps: list[int]
    cuts: list[int]
    """Offsets at which a segment ends. Journaled, so that every owner cuts the same segments."""
    start: int
    """The oldest offset kept from this commit on."""
    cursors: list[tuple[str, int]]
    """Cursors and their ACKed offsets, new and moved; applied after ``deleted``. The entry that creates a cursor gives
    its life a number: that of the commit."""
    deleted: list[str]
    ids: list[Any]
    """The consumed records' ids, as the dedup puts them."""
    counts: tuple[int, int, int]
    """Records, duplicates and late records of this commit."""


class LogMeta(msgspec.Struct, array_like=True, frozen=True):
    """The base part of everything small. The records below ``end`` are in the segment rows that it lists."""

    format: int
    watermark: int
    age: int
    end: int
    cursors: list[CursorFacts]
    segments: list[SegmentFacts]
    counts: tuple[int, int, int]


class SegmentBlob(msgspec.Struct, array_like=True, frozen=True):
    """One segment row: records from ``first`` on, and from which offsets on which watermark held."""

    format: int
    first: int
    values: list[bytes]
    timestamps: list[int]
    mark_offsets: list[int]
    mark_values: list[int]


Blob = TypeVar("Blob", LogEntry, LogMeta, SegmentBlob)

encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, msgspec.msgpack.Decoder[Any]] = {
    type_: msgspec.msgpack.Decoder(type_) for type_ in (LogEntry, LogMeta, SegmentBlob)
}


def decode(blob: bytes, type_: type[Blob], where: str) -> Blob:
    """The value in ``blob``; CorruptValueError naming ``where`` if it is not one of this type and format."""
    try:
        value: Blob = _decoders[type_].decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a {type_.__name__}: {error}") from error
    if value.format != FORMAT:
        raise CorruptValueError(where, f"{type_.__name__} of format {value.format}; this version reads format {FORMAT}")
    return value


def row_key(first: int) -> bytes:
    """The key of the row of the segment that begins at ``first``: rows sort as offsets do."""
    return first.to_bytes(8, "big")
