"""The errors that users of the SDK meet. Each says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = [
    "KeyExtractionError",
    "MillwheelError",
    "PackageError",
    "Problem",
    "ProductionTimestampError",
    "StateDamagedError",
    "TooLargeError",
    "TopologyError",
    "UndeclaredStreamError",
    "UnsupportedTypeError",
    "UsageError",
    "ValueDecodeError",
    "ValueEncodeError",
    "did_you_mean",
    "is_permanent",
]


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A hint for a mistyped name, or an empty string."""
    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class MillwheelError(Exception):
    """The base of every error that MillWheel raises on purpose."""


class UsageError(MillwheelError):
    """The API was called in a way that has no meaning."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a topology: ``where`` it is, and a ``message`` that says why, and what to do."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


class TopologyError(MillwheelError):
    """A topology with mistakes: ``problems`` holds them all, and the message lists them."""

    def __init__(self, topology: str, problems: Sequence[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"topology {topology!r} has {count}:", *(f"  {problem}" for problem in problems)]
        super().__init__("\n".join(lines))
        self.topology = topology
        self.problems = tuple(problems)


class PackageError(MillwheelError):
    """A code package could not be built, or not be loaded."""


class UnsupportedTypeError(MillwheelError):
    """No codec is known for a type; the message says which part of it is at fault, and what to do."""


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
            f"computation {computation!r} produced to {stream!r} at {timestamp}, behind its cause at {earliest}: "
            "give the production a timestamp no smaller than the record's or timer's, "
            "or set the timer with hold= at the earliest timestamp that its firing may produce"
        )


class StateDamagedError(MillwheelError):
    """A key's stored state fails its checksum: its records and timers fail, and other keys go on."""

    def __init__(self, why: str) -> None:
        """``why`` names the row, and says what is wrong with it."""
        super().__init__(
            f"{why}. The row is neither used nor overwritten: repair the store's disk or replica, or restore the row "
            "from a snapshot; it is read again at each attempt"
        )


class TooLargeError(MillwheelError):
    """A key, tag, value or state beyond its limit, or more productions in one commit than can be numbered."""

    def __init__(
        self, what: str, size: int, limit: int, advice: str = "make it smaller or split it", *, unit: str = "bytes"
    ) -> None:
        """``advice`` says what to do; it may show the lines of code that do it."""
        super().__init__(f"{what} has {size:,} {unit}, more than the limit of {limit:,}: {advice}")


class ValueDecodeError(MillwheelError):
    """A record's or state's bytes are not of the declared type."""


class ValueEncodeError(MillwheelError):
    """A produced value or a state is not of the declared type, or cannot be encoded."""


class KeyExtractionError(MillwheelError):
    """A consumer's key extractor could not give a record's key."""


_PERMANENT = (
    KeyExtractionError,
    ProductionTimestampError,
    TooLargeError,
    UndeclaredStreamError,
    UnsupportedTypeError,
    UsageError,
    ValueDecodeError,
    ValueEncodeError,
)


def is_permanent(error: BaseException) -> bool:
    """Whether a hook that raised ``error`` would raise it again: the SDK refused what the code does, or the record."""
    return isinstance(error, _PERMANENT)
