"""The envelope of every stored value: one byte of format version, four bytes of checksum, then the payload.

A value that is damaged, or that newer software wrote, is never decoded. Reading it raises
:class:`~millwheel.errors.CorruptValueError`, which names the value.
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

from millwheel.errors import CorruptValueError

__all__ = ["FORMAT_VERSION", "HEADER_BYTES", "pack_header", "unwrap", "wrap"]

FORMAT_VERSION: Final = 1
"""The version that this software writes. It reads no other."""

_HEADER: Final = struct.Struct("<BI")
HEADER_BYTES: Final = _HEADER.size

pack_header = _HEADER.pack
"""``pack_header(FORMAT_VERSION, crc32(payload))``: the header alone, for loops where a call per row is too slow."""


def wrap(payload: bytes) -> bytes:
    """Return ``payload`` after its format version and checksum."""
    return pack_header(FORMAT_VERSION, crc32(payload)) + payload


def unwrap(value: bytes | None, where: str) -> bytes:
    """Return the payload of ``value``; CorruptValueError naming ``where`` if missing, damaged or of another format."""
    if value is None:
        raise CorruptValueError(where, "the value is missing, though the journal says that it was written")
    if len(value) < HEADER_BYTES:
        raise CorruptValueError(where, f"{len(value)} bytes are too few for a stored value")
    version, checksum = _HEADER.unpack_from(value)
    if version != FORMAT_VERSION:
        raise CorruptValueError(where, f"format {version}, and this software reads format {FORMAT_VERSION}")
    payload = value[HEADER_BYTES:]
    actual = crc32(payload)
    if actual != checksum:
        raise CorruptValueError(where, f"checksum {actual:08x} where {checksum:08x} was written")
    return payload
