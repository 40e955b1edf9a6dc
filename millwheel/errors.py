"""The errors that several layers raise or handle. This module is the bottom layer: it imports nothing of MillWheel.

The store's and the coordinator's errors belong to their contracts (:mod:`millwheel.store.contract`,
:mod:`millwheel.coordination.contract`), which name them too. Those that other layers know are defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

__all__ = [
    "CoordinatorError",
    "CoordinatorUnavailableError",
    "CorruptValueError",
    "DamagedValueError",
    "MillwheelError",
    "NotInstalledError",
    "Problem",
    "StoreError",
    "did_you_mean",
]


class MillwheelError(Exception):
    """The base class of all errors that MillWheel raises deliberately."""


class NotInstalledError(Exception):
    """This process lacks an optional library that stored data needs. The data is whole. The message says what to do."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a topology: ``where`` it is, and a ``message`` with the reason and the remedy."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A hint for a misspelled name, or an empty string."""
    close = get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


class StoreError(Exception):
    """Base class of all errors that a store reports. The message says what to do."""


class CorruptValueError(StoreError):
    """A stored value is missing, damaged or in another format; ``where`` names the value, ``why`` gives the reason."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where
        self.why = why


class CoordinatorError(Exception):
    """Base class of all errors that a coordinator reports. The message says what to do."""


class CoordinatorUnavailableError(CoordinatorError):
    """There is no quorum or no connection. The outcome of the call is unknown."""


class DamagedValueError(CoordinatorUnavailableError):
    """A stored value fails its checksum, or MillWheel did not write it. Its content is unknown until the value is
    overwritten or restored.

    A caller that can only wait treats the error like an unavailable coordinator.
    """

    def __init__(self, key: str, why: str) -> None:
        super().__init__(
            f"the coordinator's value {key} is damaged ({why}): nothing is done with it, and nothing is written over "
            "it; restore the coordinator from a snapshot"
        )
        self.key = key
        self.why = why
