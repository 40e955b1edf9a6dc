"""Checks of what a step is given, when the program is built. Without them a hook would fail at each record."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, wraps
from inspect import Signature, signature
from typing import Any, TypeVar

from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.streams.argument_kinds import ArgumentKind, argument_kinds

__all__ = ["checked", "refuse_unknown"]

M = TypeVar("M", bound=Callable[..., Any])


def checked(options: Any = None) -> Callable[[M], M]:
    """Decorates a step: it refuses an argument of a wrong kind, and any option that it does not have.

    Args:
        options: The TypedDict of ``**options``. None: the step has no ``**options``.
    """

    def decorate(method: M) -> M:
        of_method = signature(method)
        shared = [] if options is None else sorted(options.__annotations__)

        @cache
        def kinds() -> dict[str, ArgumentKind]:
            # At the first call: the module of the step has all its names then.
            return _of_method(method) | ({} if options is None else _of_options(options))

        keywords = [name for name, one in of_method.parameters.items() if one.kind is one.KEYWORD_ONLY]

        @wraps(method)
        def step(*args: Any, **given: Any) -> Any:
            bound = _bound(of_method, args, given)
            name = bound.get("name", "")
            if not isinstance(name, str):
                called = f"{method.__name__}('counts', ...)"
                raise UsageError(f"a step has a name first, such as {called}, and not {_shown(name)}")
            where = f"step {name!r}: {method.__name__}" if name else method.__name__
            if options is not None:
                chosen = bound.pop("options", {})
                refuse_unknown(where, chosen, shared, keywords)
                bound |= chosen
            for argument, value in bound.items():
                kind = kinds().get(argument)
                if kind is not None and not kind.fits(value):
                    raise UsageError(f"{where} takes {argument}= as {kind.words}, not {_shown(value)}")
            return method(*args, **given)

        return step  # type: ignore[return-value]

    return decorate


def _of_method(method: Any) -> dict[str, ArgumentKind]:
    return argument_kinds(
        {name: one for name, one in method.__annotations__.items() if name != "return"}, method.__globals__
    )


def _of_options(options: Any) -> dict[str, ArgumentKind]:
    texts = {name: getattr(one, "__forward_arg__", one) for name, one in options.__annotations__.items()}
    return argument_kinds(texts, vars(sys.modules[options.__module__]))


def _bound(method: Signature, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments by name. Python reports those that the method cannot take: the call itself does that."""
    try:
        return method.bind_partial(*args, **given).arguments
    except TypeError:
        return {}


def _shown(value: Any) -> str:
    """A value in an error. A function that was meant to be called is shown by its name."""
    return getattr(value, "__qualname__", None) or f"{value!r:.40}"


def refuse_unknown(where: str, given: Iterable[str], shared: Sequence[str], own: Sequence[str] = ()) -> None:
    """Refuse the first option that is not known.

    Args:
        where: The step, for the error.
        given: The options.
        shared: Those that all steps have.
        own: Those that this step has.

    Raises:
        UsageError: There is one. The error has the most similar known one, and all of them.
    """
    known = [*own, *shared]
    for option in given:
        if option not in known:
            meant = did_you_mean(option, known)
            raise UsageError(f"{where} has no option {option!r}{meant}. Its options are {', '.join(known)}")
