"""The definition of a mutation: it removes one mechanism of the product, and a seed or a test must fail without it."""

from __future__ import annotations
import __future__

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


def rewrite(function: Any, old: str, new: str) -> None:
    """Change one piece of a function's source text, also for modules that have imported the function already.

    Args:
        function: a function, a property, or a method of a class, also if a decorator wraps it.
        old: text that the function's source contains exactly once, as in the file.
        new: the text that replaces it.

    Raises:
        ValueError: the source does not contain ``old`` exactly once. The product has changed, and the mutation must be
            updated.
    """
    inner: Any = function.fget if isinstance(function, property) else getattr(function, "__func__", function)
    found = inspect.unwrap(inner)
    assert isinstance(found, FunctionType), f"{function!r} is no function of Python's"
    source = textwrap.dedent(inspect.getsource(found))
    if source.count(old) != 1:
        raise ValueError(f"{found.__qualname__} has {source.count(old)} times, and not once: {old}")
    flags = __future__.annotations.compiler_flag
    module = compile(source.replace(old, new), f"<mutation of {found.__qualname__}>", "exec", flags, dont_inherit=True)
    found.__code__ = next(
        one for one in module.co_consts if isinstance(one, CodeType) and one.co_name == found.__code__.co_name
    )


def rewriting(
    name: str,
    guarantee: str,
    mechanism: str,
    function: Any,
    old: str,
    new: str,
    *,
    seeds: int = _SEEDS,
    test: str = "",
    why: str = "",
) -> None:
    """Register a mutation that is one change of a function's text.

    The arguments are those of ``mutation`` and ``rewrite``.
    """

    def apply() -> None:
        rewrite(function, old, new)

    apply.__name__ = name
    mutation(guarantee, mechanism, seeds=seeds, test=test, why=why)(apply)
