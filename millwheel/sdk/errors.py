"""The errors that the SDK raises for users. Each message says what is wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.errors import MillwheelError, Problem, did_you_mean

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


class UsageError(MillwheelError):
    """The API was called with arguments that are not valid, or in a wrong state."""


class TopologyError(MillwheelError):
    """A topology has mistakes. ``problems`` contains all of them, and the message lists them."""

    def __init__(self, topology: str, problems: Sequence[Problem]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        lines = [f"topology {topology!r} has {count}:", *(f"  {problem}" for problem in problems)]
        super().__init__("\n".join(lines))
        self.topology = topology
        self.problems = tuple(problems)


class PackageError(MillwheelError):
    """A code package cannot be built or loaded."""


class UnsupportedTypeError(MillwheelError):
    """A type has no codec. The message names the part of the type that causes this, and the remedy."""


class UndeclaredStreamError(MillwheelError):
    """A hook produced to a stream that is not among its computation's outputs."""

    def __init__(self, computation: str, stream: str, outputs: Sequence[str]) -> None:
        known = ", ".join(repr(name) for name in outputs) or "none"
        super().__init__(
            f"computation {computation!r} produced to stream {stream!r}, which is not one of its outputs ({known})"
            f"{did_you_mean(stream, outputs)}: add it to outputs= in the topology"
        )


class ProductionTimestampError(MillwheelError):
    """A production's timestamp is before its cause.

    Consumers may have seen a higher watermark already (section 4.5).
    """

    def __init__(self, computation: str, stream: str, timestamp: int, earliest: int) -> None:
        super().__init__(
            f"computation {computation!r} produced to {stream!r} at {timestamp}, behind its cause at {earliest}: "
            "give the production a timestamp no smaller than the record's or timer's, "
            "or set the timer with hold= at the earliest timestamp that its firing may produce"
        )


class StateDamagedError(MillwheelError):
    """A key's stored state fails its checksum. The key's records and timers fail; other keys are not affected."""

    def __init__(self, why: str) -> None:
        """``why`` names the row and the damage."""
        super().__init__(
            f"{why}. The row is neither used nor overwritten: repair the store's disk or replica, or restore the row "
            "from a snapshot; it is read again at each attempt"
        )


class TooLargeError(MillwheelError):
    """A key, tag, value or state exceeds its limit, or one commit has more productions than it can number.

    Attributes:
        fault: What is too large, without the remedy.
    """

    def __init__(
        self, what: str, size: int, limit: int, advice: str = "make it smaller or split it", *, unit: str = "bytes"
    ) -> None:
        """``advice`` is the remedy. It may contain lines of code."""
        self.fault = f"{what} has {size:,} {unit}, more than the limit of {limit:,}"
        super().__init__(f"{self.fault}: {advice}")


class ValueDecodeError(MillwheelError):
    """The bytes of a record or a state do not decode as the declared type."""


class ValueEncodeError(MillwheelError):
    """A produced value or a state is not of the declared type, or cannot be encoded."""


class KeyExtractionError(MillwheelError):
    """A consumer's key extractor did not return a key for a record.

    Attributes:
        computation: The consumer whose code has the fault. Empty if the fault is elsewhere or not known.
        extractor_raised: True if the extractor raised an error, which is this error's ``__cause__``. False if the
            extractor returned no key.
        other_topology: The consumer's topology, if another topology's hook produced the record. Empty in all other
            cases.
    """

    def __init__(self, *args: object, computation: str = "", extractor_raised: bool = False) -> None:
        super().__init__(*args)
        self.computation = computation
        self.extractor_raised = extractor_raised
        self.other_topology = ""


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
    """Whether a retry would raise ``error`` again, because the SDK rejected the hook's code or the record."""
    return isinstance(error, _PERMANENT)
