"""The error for a page token that no answer had. All services have the same one. Pure."""

from __future__ import annotations

from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["foreign_page_token"]


def foreign_page_token() -> RequestError:
    """Return the error for a page token that no answer of the service had."""
    return RequestError(
        FailureCode.INVALID_ARGUMENT,
        "the page token is not one that this server gave",
        "leave it out to start again",
        reason="PAGE_TOKEN_INVALID",
    )
