"""What a mutation is: one mechanism of the product taken out, and how to see that somebody misses it."""

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
"""Chance decides which seed shows it: whoever changes the simulator has others do so."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mechanism taken out. ``apply`` does it, for good, in this process."""

    name: str
    guarantee: str
    """Whose mechanism it is: "G3"."""
    mechanism: str
    """What the product does that is done no more."""
    apply: Callable[[], None]
    seeds: int
    """Simulated runs that are tried, at most; 0: none can show it."""
    test: str
    """The test that shows it where no simulated run does; empty where the simulator must."""
    why: str
    """Why the simulator need not show it."""


MUTATIONS: Final[dict[str, Mutation]] = {}
"""All of them by name, in the order in which they are tried."""


def mutation(
    guarantee: str, mechanism: str, *, seeds: int = _SEEDS, test: str = "", why: str = ""
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A function that takes the mechanism out; its docstring says what happens instead."""

    def register(apply: Callable[[], None]) -> Callable[[], None]:
        name = apply.__name__.replace("_", "-")
        assert name not in MUTATIONS, name
        assert bool(test) == bool(why), f"{name}: a test stands in for the simulator for a reason"
        MUTATIONS[name] = Mutation(name, guarantee, mechanism, apply, seeds, test, why)
        return apply

    return register


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make`` of what is there in the place of an attribute; AttributeError if nothing is: then the product has
    moved on, and the mutation has to follow."""
    setattr(owner, name, make(getattr(owner, name)))


def rewrite(function: Any, old: str, new: str) -> None:
    """Change one piece of a function's source text, for everybody who has the function already.

    Args:
        function: a function, a property, or a method of a class, also where a decorator wraps it.
        old: text that the function's source has exactly once, as it stands in the file.
        new: the text that takes its place.

    Raises:
        ValueError: the source does not have ``old`` exactly once: then the product has moved on, and the mutation
            has to follow.
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
    """Register a mutation that is one change of a function's text; the arguments are those of ``mutation`` and
    ``rewrite``."""

    def apply() -> None:
        rewrite(function, old, new)

    apply.__name__ = name
    mutation(guarantee, mechanism, seeds=seeds, test=test, why=why)(apply)
