"""Envelopes of stored values: a number before an encoding, which says what stored it (section 4.4).

An envelope is a byte that MessagePack never uses, the number, and the encoding. What has the first number is stored
without one, unless its encoding begins with that byte. So values whose type never changes have no extra bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

from millwheel.sdk.errors import ValueDecodeError

__all__ = ["MARK", "envelope", "opened"]

MARK: Final = b"\xc1"
"""The first byte of an envelope. MessagePack reserves this byte and never uses it."""


def envelope(number: int) -> bytes:
    """What stands before the encoding in an envelope. None of them begins like another."""
    return MARK + msgspec.msgpack.encode(number)


def opened(data: bytes, what: str) -> tuple[int, bytes]:
    """The number and the encoding in an envelope. ValueDecodeError names ``what`` if there is no number."""
    size = {0xCC: 2, 0xCD: 3, 0xCE: 5}.get(data[1], 1) if len(data) > 1 else 0
    try:
        return msgspec.msgpack.decode(data[1 : 1 + size], type=int), data[1 + size :]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueDecodeError(f"{what} has no version: {error}") from error
