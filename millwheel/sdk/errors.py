"""The errors that users of the SDK meet. Each says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

__all__ = [
    "KeyExtractionError",
    "MillwheelError",
    "ProductionTimestampError",
    "TooLargeError",
    "TopologyError",
    "UndeclaredStreamError",
    "UsageError",
    "ValueDecodeError",
    "did_you_mean",
]


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A hint for a mistyped name, or an empty string."""
    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class MillwheelError(Exception):
    """The base of every error that MillWheel raises on purpose."""


class UsageError(MillwheelError):
    """The API was called in a way that has no meaning."""


class TopologyError(MillwheelError):
    """A topology with mistakes; the message lists them all."""


class UndeclaredStreamError(MillwheelError):
    """A hook produced to a stream that is not among its computation's outputs."""

    def __init__(self, computation: str, stream: str, outputs: Sequence[str]) -> None:
        known = ", ".join(repr(name) for name in outputs) or "none"
        super().__init__(
            f"computation {computation!r} produced to stream {stream!r}, which is not one of its outputs ({known})"
            f"{did_you_mean(stream, outputs)}: add it to outputs= in the topology"
        )


class ProductionTimestampError(MillwheelError):
    """A production behind its cause: consumers may have seen a watermark above it (section 4.5)."""

    def __init__(self, computation: str, stream: str, timestamp: int, earliest: int) -> None:
        super().__init__(
            f"computation {computation!r} produced to {stream!r} at {timestamp}, which is behind its cause at {earliest}: "
            "give the production a timestamp no smaller than the record's or timer's, "
            "or set the timer with hold= at the earliest timestamp that its firing may produce"
        )


class TooLargeError(MillwheelError):
    """A key, tag, value or state beyond its limit."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size:,} bytes, more than the limit of {limit:,}: make it smaller or split it")


class ValueDecodeError(MillwheelError):
    """A record's or state's bytes are not of the declared type."""


class KeyExtractionError(MillwheelError):
    """A consumer's key extractor could not give a record's key."""
