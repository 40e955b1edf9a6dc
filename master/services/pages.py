"""Pages of lists: how many rows one has, and tokens that are none."""

from __future__ import annotations

from typing import Final

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["foreign_page_token", "page_rows"]

_DEFAULT_PAGE_ROWS: Final = 100
_MAX_PAGE_ROWS: Final = 1_000


def page_rows(asked: int) -> int:
    """Return how many rows a page has. ``asked``: the most that the request wants; 0 or less leaves it open."""
    return min(asked if asked > 0 else _DEFAULT_PAGE_ROWS, _MAX_PAGE_ROWS)


def foreign_page_token() -> RequestError:
    """Return the error for a page token that no answer of the service had."""
    return RequestError(
        FailureCode.INVALID_ARGUMENT,
        "the page token is not one that this service gave",
        "leave it out to start again",
        reason="PAGE_TOKEN_INVALID",
    )
