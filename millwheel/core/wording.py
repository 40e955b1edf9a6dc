"""Numbers of things in words, for messages."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, what: str) -> str:
    """A number of things in words: ``1 record``, ``2,000 records``."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"
