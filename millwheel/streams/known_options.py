"""Steps refuse an option that they do not have. Without this, ``**options`` would take a misspelt one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from inspect import signature
from typing import Any, TypeVar

from millwheel.sdk.errors import UsageError, did_you_mean

__all__ = ["known_options", "refuse_unknown"]

M = TypeVar("M", bound=Callable[..., Any])


def known_options(options: Any) -> Callable[[M], M]:
    """Decorates a step with ``**options``: it refuses any option but its own and those of a TypedDict.

    Args:
        options: The class of ``**options``.
    """

    def decorate(method: M) -> M:
        of_method = [each for each in signature(method).parameters.values() if each.kind is not each.VAR_KEYWORD]
        shared = sorted(options.__optional_keys__)
        by_keyword = {*(each.name for each in of_method), *shared}
        listed = [*(each.name for each in of_method if each.kind is each.KEYWORD_ONLY), *shared]

        @wraps(method)
        def step(*args: Any, **given: Any) -> Any:
            if not given.keys() <= by_keyword:
                name = given.get("name", args[1] if len(args) > 1 else "")
                called = f"step {name!r}" if name else "a step"
                unknown = [option for option in given if option not in by_keyword]
                refuse_unknown(f"{called}: {method.__name__}", unknown, listed)
            return method(*args, **given)

        return step  # type: ignore[return-value]

    return decorate


def refuse_unknown(where: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Refuse the first option that is not known.

    Raises:
        UsageError: There is one. The error has the most similar known one, and all of them.
    """
    for option in given:
        if option not in known:
            meant = did_you_mean(option, known)
            raise UsageError(f"{where} has no option {option!r}{meant}. Its options are {', '.join(known)}")
