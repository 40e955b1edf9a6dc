"""The definition of a mutation: it removes one mechanism of the product, and a seed or a test must fail without it."""

from __future__ import annotations
import __future__

import builtins
import dis
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final

__all__ = ["MUTATIONS", "Mutation", "mutation", "replace", "rewrite", "rewriting"]

_SEEDS: Final = 100
"""The default number of seeds. Any change of the simulator changes which seeds show a mutation."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One removed mechanism. ``apply`` removes it permanently in this process."""

    name: str
    guarantee: str
    """The guarantee that the mechanism supports, such as "G3"."""
    mechanism: str
    """What the product does only with the mechanism."""
    apply: Callable[[], None]
    seeds: int
    """The most simulated runs to try; 0: no run can show the mutation."""
    test: str
    """The test that shows the mutation if no simulated run does; empty if the simulator must show it."""
    why: str
    """Why the simulator need not show it."""


MUTATIONS: Final[dict[str, Mutation]] = {}
"""All mutations by name, in the order in which they are tried."""


def mutation(
    guarantee: str, mechanism: str, *, seeds: int = _SEEDS, test: str = "", why: str = ""
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that removes the mechanism. The function's docstring says what happens instead."""

    def register(apply: Callable[[], None]) -> Callable[[], None]:
        name = apply.__name__.replace("_", "-")
        assert name not in MUTATIONS, name
        assert bool(test) == bool(why), f"{name}: a test stands in for the simulator for a reason"
        MUTATIONS[name] = Mutation(name, guarantee, mechanism, apply, seeds, test, why)
        return apply

    return register


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace an attribute by ``make`` of its value.

    Raises:
        AttributeError: there is no such attribute. The product has changed, and the mutation must be updated.
    """
    setattr(owner, name, make(getattr(owner, name)))


def rewrite(owner: Any, old: str, new: str) -> None:
    """Change one piece of source text, also for modules that have imported its function already.

    Args:
        owner: what contains the text: a module, a class, or a function, a property or a method, also if a decorator
            wraps it. A class or a module spares the name of a private function.
        old: text that the functions of ``owner`` contain exactly once, as in the file.
        new: the text that replaces it.

    Raises:
        ValueError: the source does not contain ``old`` exactly once, or ``new`` uses a name that is not there. The
            product has changed, and the mutation must be updated.
    """
    sources = {one: textwrap.dedent(inspect.getsource(one)) for one in _functions(owner)}
    times = sum(source.count(old) for source in sources.values())
    if times != 1:
        raise ValueError(f"{owner!r} has {times} times, and not once: {old}")
    found = next(one for one, source in sources.items() if old in source)
    flags = __future__.annotations.compiler_flag
    text = sources[found].replace(old, new)
    module = compile(text, f"<mutation of {found.__qualname__}>", "exec", flags, dont_inherit=True)
    code = next(one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == found.__code__.co_name)
    if missing := _unknown_names(code, found) - _unknown_names(found.__code__, found):
        raise ValueError(f"{found.__qualname__} has no {', '.join(sorted(missing))}, which is used in: {new}")
    found.__code__ = code


def _unknown_names(code: CodeType, function: FunctionType) -> set[str]:
    """The names in the code that are neither local nor defined where the function is."""
    used = {str(one.argval) for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [_unknown_names(one, function) for one in code.co_consts if isinstance(one, CodeType)]
    return used.union(*inner) - function.__globals__.keys() - vars(builtins).keys()


def _functions(owner: Any) -> set[FunctionType]:
    """The functions that have their text in ``owner``: itself, or those of a module, or of a class and its bases."""
    if inspect.ismodule(owner):
        defined = [one for one in vars(owner).values() if getattr(one, "__module__", "") == owner.__name__]
        return {one for value in defined if callable(value) for one in _functions(value)}
    if inspect.isclass(owner):
        functions = {one for base in owner.__mro__ for value in vars(base).values() for one in _functions(value)}
        return {one for one in functions if one.__module__.startswith("millwheel.") and _has_text(one)}
    inner = owner.fget if isinstance(owner, property) else getattr(owner, "__func__", owner)
    found = inspect.unwrap(inner) if callable(inner) else inner
    return {found} if isinstance(found, FunctionType) else set()


def _has_text(function: FunctionType) -> bool:
    """Whether the function's source is in a file: neither generated, as of a dataclass, nor mutated."""
    return not function.__code__.co_filename.startswith("<")


def rewriting(
    name: str,
    guarantee: str,
    mechanism: str,
    owner: Any,
    old: str,
    new: str,
    *,
    seeds: int = _SEEDS,
    test: str = "",
    why: str = "",
) -> None:
    """Register a mutation that is one change of source text.

    The arguments are those of ``mutation`` and ``rewrite``.
    """

    def apply() -> None:
        rewrite(owner, old, new)

    apply.__name__ = name
    mutation(guarantee, mechanism, seeds=seeds, test=test, why=why)(apply)
