"""Pages of lists: how many rows one has."""

from __future__ import annotations

from typing import Final

__all__ = ["page_rows"]

_DEFAULT_PAGE_ROWS: Final = 100
_MAX_PAGE_ROWS: Final = 1_000


def page_rows(asked: int) -> int:
    """Return how many rows a page has. ``asked``: the most that the request wants; 0 or less leaves it open."""
    return min(asked if asked > 0 else _DEFAULT_PAGE_ROWS, _MAX_PAGE_ROWS)
