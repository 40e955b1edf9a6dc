"""Checks of what a step is given, when the program is built. Without them a hook would fail at each record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from inspect import Signature, signature
from typing import Any, Final, NamedTuple, TypeVar

from millwheel.model.time import TimeDomain
from millwheel.sdk.errors import UsageError, did_you_mean
from millwheel.windows.assigners import SessionWindows

__all__ = ["checked", "refuse_unknown"]

M = TypeVar("M", bound=Callable[..., Any])


class _Kind(NamedTuple):
    """What an argument of an annotated kind must be, and the words for it."""

    fits: Callable[[Any], bool]
    words: str


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KINDS: Final[Mapping[str, _Kind]] = {
    "bool": _Kind(lambda value: isinstance(value, bool), "True or False"),
    "int": _Kind(_is_int, "a whole number"),
    "str": _Kind(lambda value: isinstance(value, str), "a name"),
    "TimeDomain": _Kind(lambda value: isinstance(value, TimeDomain), "a mw.TimeDomain"),
    "Callable": _Kind(callable, "a function"),
    "Of": _Kind(lambda value: value is None or isinstance(value, str) or callable(value), "a field or a function"),
    "Assigner | SessionWindows": _Kind(
        lambda value: isinstance(value, SessionWindows) or hasattr(value, "windows_of"),
        "windows, such as windows.tumbling(mw.minutes(1))",
    ),
}
"""By the text of the annotation, without arguments and ``| None``. Operators check the others, such as durations."""


def checked(options: Any = None) -> Callable[[M], M]:
    """Decorates a step: it refuses an argument of a wrong kind, and any option that it does not have.

    Args:
        options: The TypedDict of ``**options``. None: the step has no ``**options``.
    """

    def decorate(method: M) -> M:
        of_method = signature(method)
        texts = {name: one.annotation for name, one in of_method.parameters.items() if isinstance(one.annotation, str)}
        shared = {} if options is None else {name: each.__forward_arg__ for name, each in _annotations(options)}
        kinds = {name: kind for name, text in (texts | shared).items() if (kind := _kind_of(text))}
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
                refuse_unknown(where, chosen, sorted(shared), keywords)
                bound |= chosen
            for argument, value in bound.items():
                kind, optional = kinds.get(argument, _ANY)
                if not (kind.fits(value) or (optional and value is None)):
                    raise UsageError(f"{where} takes {argument}= as {kind.words}, not {_shown(value)}")
            return method(*args, **given)

        return step  # type: ignore[return-value]

    return decorate


_ANY: Final = (_Kind(lambda value: True, ""), True)


def _annotations(options: Any) -> Iterable[tuple[str, Any]]:
    return options.__annotations__.items()  # type: ignore[no-any-return]


def _kind_of(text: str) -> tuple[_Kind, bool] | None:
    """The kind of an annotation, and whether None is allowed. None: it is not checked here."""
    kind = _KINDS.get(text.removesuffix(" | None").partition("[")[0])
    return kind and (kind, text.endswith(" | None"))


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
