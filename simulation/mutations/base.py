"""What a mutation is: one mechanism of the product taken out, and how to see that somebody misses it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["MUTATIONS", "Mutation", "mutation", "replace"]

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
