"""The envelope of every stored value: one byte of format version, four bytes of checksum, then the payload.

A journal entry may be deflated: then its length and a zlib stream stand in place of the payload.

A value that is damaged, or that newer software wrote, is never decoded. Reading it raises
:class:`~millwheel.errors.CorruptValueError`, which names the value.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Generator
from typing import Final
from zlib import crc32

from millwheel.errors import CorruptValueError

__all__ = [
    "DEFLATED_FORMAT",
    "DEFLATE_FROM",
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "MAX_DEFLATED_BYTES",
    "PIECE_BYTES",
    "deflating",
    "inflating",
    "pack_header",
    "unwrap",
    "wrap",
    "wrap_deflated",
]

FORMAT_VERSION: Final = 1
"""The version of a value whose payload is as it is."""

DEFLATED_FORMAT: Final = 2
"""The version of a value whose payload is deflated. A cluster has such values from format ``DEFLATED_ENTRIES`` on."""

MAX_DEFLATED_BYTES: Final = 16 << 20
"""The longest payload that is deflated, so that a reader knows how much memory one may take."""

PIECE_BYTES: Final = 256 << 10
"""So many bytes are deflated or inflated at once: 2 ms. Between two pieces, others may have their turn."""

DEFLATE_FROM: Final = 24 << 10
"""Shorter payloads stay as they are: to deflate one costs about as much as the store saves (decision 10)."""
_SAMPLE_BYTES: Final = 4_096
_WORTH: Final = 0.8
"""Deflated values are at most this share of the payload, and so is the sample."""
_LEVEL: Final = 1
"""zlib's fastest level: 5 ns a byte."""

_HEADER: Final = struct.Struct("<BI")
_LENGTH: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size

pack_header = _HEADER.pack
"""``pack_header(FORMAT_VERSION, crc32(payload))``: the header alone, for loops where a call per row is too slow."""


def wrap(payload: bytes) -> bytes:
    """Return ``payload`` after its format version and checksum."""
    return pack_header(FORMAT_VERSION, crc32(payload)) + payload


def wrap_deflated(payload: bytes) -> bytes:
    """Return ``payload`` as ``wrap`` does, but deflated if that makes it clearly smaller. Equal payloads give equal
    values.

    What cannot be deflated costs little: the first bytes are tried before the rest.
    """
    return _at_once(deflating(payload))


def deflating(payload: bytes) -> Generator[None, None, bytes]:
    """As ``wrap_deflated``, with a stop between pieces of ``PIECE_BYTES``."""
    size = len(payload)
    if not DEFLATE_FROM <= size <= MAX_DEFLATED_BYTES:
        return wrap(payload)
    if len(zlib.compress(payload[:_SAMPLE_BYTES], _LEVEL)) > _WORTH * _SAMPLE_BYTES:
        return wrap(payload)
    stream, parts = zlib.compressobj(_LEVEL), [_LENGTH.pack(size)]
    for at in range(0, size, PIECE_BYTES):
        if at:
            yield
        parts.append(stream.compress(payload[at : at + PIECE_BYTES]))
    deflated = b"".join((*parts, stream.flush()))
    if len(deflated) > _WORTH * size:
        return wrap(payload)
    return pack_header(DEFLATED_FORMAT, crc32(deflated)) + deflated


def unwrap(value: bytes | None, where: str) -> bytes:
    """Return the payload of ``value``; CorruptValueError naming ``where`` if missing, damaged or of another format."""
    return _at_once(inflating(value, where))


def inflating(value: bytes | None, where: str) -> Generator[None, None, bytes]:
    """As ``unwrap``, with a stop between pieces of ``PIECE_BYTES`` that are inflated."""
    if value is None:
        raise CorruptValueError(where, "the value is missing, though the journal says that it was written")
    if len(value) < HEADER_BYTES:
        raise CorruptValueError(where, f"{len(value)} bytes are too few for a stored value")
    version, checksum = _HEADER.unpack_from(value)
    if version not in (FORMAT_VERSION, DEFLATED_FORMAT):
        known = f"{FORMAT_VERSION} and {DEFLATED_FORMAT}"
        raise CorruptValueError(where, f"format {version}, and this software reads formats {known}")
    payload = value[HEADER_BYTES:]
    actual = crc32(payload)
    if actual != checksum:
        raise CorruptValueError(where, f"checksum {actual:08x} where {checksum:08x} was written")
    return payload if version == FORMAT_VERSION else (yield from _inflating(payload, where))


def _inflating(deflated: bytes, where: str) -> Generator[None, None, bytes]:
    """The payload. It never takes more memory than the length that is stated, which has a bound."""
    length = _LENGTH.unpack_from(deflated)[0] if len(deflated) >= _LENGTH.size else 0
    if not 0 < length <= MAX_DEFLATED_BYTES:
        raise CorruptValueError(where, f"a deflated value of {length:,} bytes, at most {MAX_DEFLATED_BYTES:,} may be")
    stream, parts, rest, left = zlib.decompressobj(), list[bytes](), deflated[_LENGTH.size :], length + 1
    while left and not stream.eof:
        if parts:
            yield
        try:
            part = stream.decompress(rest, min(left, PIECE_BYTES))
        except zlib.error as error:
            raise CorruptValueError(where, f"a deflated value that cannot be read: {error}") from error
        if not part:
            break  # it has ended, or its end is missing
        rest, left = stream.unconsumed_tail, left - len(part)
        parts.append(part)
    payload = b"".join(parts)
    if len(payload) != length or not stream.eof or stream.unused_data:
        raise CorruptValueError(where, f"a deflated value that has not the {length:,} bytes that it states")
    return payload


def _at_once(steps: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: bytes = end.value
            return result
