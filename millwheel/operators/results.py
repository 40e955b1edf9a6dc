"""The results of steps: what a user's function returns, and the streams that they go to."""

from __future__ import annotations

from collections.abc import Iterable
from types import GeneratorType
from typing import Any

from millwheel.sdk.errors import UsageError

__all__ = ["check_too_late", "each_of", "no_pair"]


def each_of(results: Any, function: Any) -> Iterable[Any]:
    """The results that ``function`` has returned.

    Raises:
        UsageError: They are one value. A text is one, too: its characters would be the results.
    """
    if results.__class__ in (list, GeneratorType) or (
        isinstance(results, Iterable) and not isinstance(results, str | bytes)
    ):
        return results
    name = getattr(function, "__qualname__", type(function).__name__)
    raise UsageError(f"{name} returned {results!r:.80} as its results: return a list, such as [{results!r:.80}] or []")


def check_too_late(output: str, too_late: str | None) -> None:
    """Raise UsageError if a step's results and its records that are too late would be one stream."""
    if too_late == output:
        raise UsageError(f"step {output!r} and its too_late= have one name: a stream has one type; use another")


def no_pair(returned: Any, function: Any) -> UsageError:
    """The error of an ``update`` whose function returned no state with results."""
    name = getattr(function, "__qualname__", type(function).__name__)
    return UsageError(
        f"{name} returned {returned!r:.80}: the function of update returns a tuple of the next state and a list of "
        "results, such as (state, [result]) or (state, [])"
    )
