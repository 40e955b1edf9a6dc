"""How far a file was read. It is stored: see docs/upgrading.md before a change."""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b

import msgspec

__all__ = ["FilePosition", "Inside", "digest_of"]

_DIGEST_BYTES = 8


class Inside(StrEnum):
    """What a position is inside of."""

    NOTHING = ""
    LINE = "line"
    """A line that is too long."""
    QUOTES = "quotes"
    """A CSV field that goes on over the ends of lines."""


class FilePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the next read of a file begins.

    Attributes:
        offset: In a file of lines, how many bytes of its text are before. Else how many rows.
        line: How many lines or rows are before.
        inside: What the place is inside of.
        digest: Of what was read, or of what says where the rows are. Another one means another file.
    """

    offset: int = 0
    line: int = 0
    inside: Inside = Inside.NOTHING
    digest: str = ""


def digest_of(*parts: bytes) -> str:
    """A digest of pieces of a file."""
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big") + part)
    return hasher.hexdigest()
