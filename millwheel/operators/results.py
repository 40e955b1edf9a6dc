"""What a user's function returns where a step takes several results of one call."""

from __future__ import annotations

from collections.abc import Iterable
from types import GeneratorType
from typing import Any

from millwheel.sdk.errors import UsageError

__all__ = ["each_of"]


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
