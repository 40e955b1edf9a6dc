"""The journal entry of one group commit, and the base parts, as bytes (design: one blob per commit).

Both are MessagePack arrays that begin with their format number. A reader that meets a newer format
refuses it by name instead of guessing.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from millwheel.store.contract import CorruptValueError

__all__ = [
    "FORMAT",
    "BaseMeta",
    "Entry",
    "InheritedRow",
    "ProductionRow",
    "TimerRow",
    "VoidRow",
    "decode_entry",
    "decode_part",
    "encode",
    "encode_part",
]

FORMAT: Final = 1

TimerRow = tuple[bytes, bool, str, int, int | None, int, int]
"""key, wall, tag, at, hold, cause, origin."""

ProductionRow = tuple[int, bytes, str, bytes, int, tuple[tuple[str, bytes], ...], bytes]
"""position, producing key, stream, value, timestamp, [(consumer, key)], opaque id (empty: the position is the id)."""

VoidRow = tuple[bytes, bool, str, int]
"""key, wall, tag, position: copies of the timer in far parts that were set at positions below it are no more."""

InheritedRow = tuple[str, ProductionRow]
"""A production made before a split or merge: the parent's journal, which is its sequence still, and the row."""


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """What one commit changed. Applied in order onto a base, entries give the interval's exact state (G2, G12)."""

    format: int
    watermark: int
    """The input watermark that was acted upon: a new owner starts from it, so late stays late."""
    wall: int
    """The wall time that was acted upon, likewise for wall timers."""
    states: list[tuple[bytes, bytes]]
    """(key, encoded state) of the keys whose state changed; empty bytes: cleared."""
    holds: list[tuple[bytes, int | None]]
    timers_set: list[TimerRow]
    timers_cleared: list[tuple[bytes, bool, str]]
    productions: list[ProductionRow]
    ids: list[Any]
    """The consumed records' ids, as the dedup puts them."""
    acked: list[tuple[int, str]]
    """(position, consumer) of productions with opaque ids whose ACK this commit acknowledges."""
    counts: tuple[int, int, int, int]
    """Records, duplicates, late records and dead letters of this commit."""
    acked_inherited: list[tuple[str, int, str]] = []
    """(sequence, position, consumer), likewise, of productions inherited from parents."""


class BaseMeta(msgspec.Struct, array_like=True, frozen=True):
    """The base part of everything small: watermarks, totals."""

    format: int
    watermark: int
    wall: int
    output: int
    counts: tuple[int, int, int, int]
    floors: list[tuple[bytes, bytes | None, int]] = []
    """First key, end, floor: what keys had been shown before a merge, and the watermark has not passed."""


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
_entry_decoder = msgspec.msgpack.Decoder(Entry)


def decode_entry(blob: bytes, where: str) -> Entry:
    """The entry in ``blob``; CorruptValueError naming ``where`` if it is not one of this format."""
    try:
        entry = _entry_decoder.decode(blob)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a journal entry: {error}") from error
    if entry.format != FORMAT:
        raise CorruptValueError(where, f"journal entry of format {entry.format}; this version reads format {FORMAT}")
    return entry


def encode_part(value: Any) -> bytes:
    """A base part's bytes."""
    return encode((FORMAT, value))


def decode_part(blob: bytes, type_: Any, where: str) -> Any:
    """The value of a base part as ``type_``; CorruptValueError naming ``where`` if it is not one."""
    try:
        number, value = msgspec.msgpack.decode(blob, type=tuple[int, type_])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptValueError(where, f"not a base part: {error}") from error
    if number != FORMAT:
        raise CorruptValueError(where, f"base part of format {number}; this version reads format {FORMAT}")
    return value
