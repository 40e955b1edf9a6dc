"""Counts in words, for messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, what: str) -> str:
    """A count with its noun: ``1 record``, ``2,000 records``."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"
