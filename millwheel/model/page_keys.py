"""The keys of pages: a key's growing state has rows of its own, whose keys are derived from the key (section 4.4).

A derived key is the key, a byte that UTF-8 never uses, and the page's number. So it is no key of a user, and no two
keys share a page. It does not sort beside its key: where rows are compared with the bounds of an interval, the key that
owns the row counts (:func:`row_owner`).
"""

from __future__ import annotations

from typing import Final

__all__ = ["PAGE_BYTE", "is_page_key", "page_key", "row_owner"]

PAGE_BYTE: Final = b"\xff"
"""The byte before the page's number. No key of a record has it."""


def page_key(key: bytes, number: int) -> bytes:
    """The key of the row of a page."""
    return key + PAGE_BYTE + number.to_bytes((number.bit_length() + 7) // 8, "big")


def is_page_key(row: bytes) -> bool:
    """Whether a row is a page of a key's state."""
    return PAGE_BYTE in row


def row_owner(row: bytes) -> bytes:
    """The key whose state a row belongs to: of a page its key, otherwise the row's key itself."""
    at = row.find(PAGE_BYTE)
    return row if at < 0 else row[:at]
