"""Stateless steps between a stream and what reads it: filters and functions, which run without a hop of their own.

A *pipeline* is a sequence of steps. It is compiled into one function, which runs inside the computation that produces
or reads the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from millwheel.sdk.declarations import DROPPED
from millwheel.sdk.function_code import may_change_its_argument

__all__ = [
    "Branch",
    "Filter",
    "FlatMap",
    "Map",
    "Only",
    "Step",
    "are_disjoint",
    "expands",
    "keeps_value",
    "on_a_copy",
    "to_many",
    "to_one",
]


@dataclass(frozen=True, slots=True)
class Filter:
    """Passes the values for which ``keep`` is true."""

    keep: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Map:
    """Replaces each value by ``function(value)``."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Replaces each value by all values of ``function(value)``."""

    function: Callable[[Any], Iterable[Any]]


@dataclass(frozen=True, slots=True)
class Only:
    """Passes the values of one class."""

    kind: type


Step = Filter | Map | FlatMap | Only


class Branch(NamedTuple):
    """A stream of the topology, by its name, and the steps that follow it."""

    stream: str
    steps: tuple[Step, ...] = ()

    def __str__(self) -> str:
        return "".join([self.stream, *(f".{type(step).__name__.lower()}" for step in self.steps)])


def expands(steps: Sequence[Step]) -> bool:
    """Whether one value may become several."""
    return any(isinstance(step, FlatMap) for step in steps)


def keeps_value(steps: Sequence[Step]) -> bool:
    """Whether each value that passes is unchanged, and of the same type as those that do not."""
    return all(isinstance(step, Filter) for step in steps)


def are_disjoint(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Whether no value passes both, because they begin with classes that have no values in common."""
    kinds = [steps[0].kind for steps in (one, other) if steps and isinstance(steps[0], Only)]
    return len(kinds) == 2 and not issubclass(kinds[0], kinds[1]) and not issubclass(kinds[1], kinds[0])


def on_a_copy(steps: Sequence[Step], copy: Callable[[Any], Any], *, key_changes: bool = False) -> tuple[Step, ...]:
    """The same steps for a value that others get too: no function of them changes it.

    Args:
        steps: The steps.
        copy: Returns a copy of a value of the stream. It is called only where a function may change its argument, and
            after the filters before it.
        key_changes: Whether the key's function may change its argument.
    """
    if not key_changes and not any(map(_may_change, steps)):
        return tuple(steps)
    passed = 0
    while passed < len(steps) and isinstance(steps[passed], Filter | Only) and not _may_change(steps[passed]):
        passed += 1
    return (*steps[:passed], Map(copy), *steps[passed:])


def _may_change(step: Step) -> bool:
    if isinstance(step, Only):
        return False
    return may_change_its_argument(step.keep if isinstance(step, Filter) else step.function)


def to_one(steps: Sequence[Step]) -> Callable[[Any], Any]:
    """The pipeline as a function from a value to its only result, or to DROPPED. It must not expand."""
    functions = [_as_function(step) for step in steps]
    if len(functions) == 1:
        return functions[0]
    if len(functions) == 2:
        return _both(*functions)

    def run(value: Any) -> Any:
        for function in functions:
            value = function(value)
            if value is DROPPED:
                break
        return value

    return run


def _both(first: Callable[[Any], Any], second: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        made = first(value)
        return DROPPED if made is DROPPED else second(made)

    return run


def _as_function(step: Step) -> Callable[[Any], Any]:
    if isinstance(step, Map):
        return step.function
    if isinstance(step, FlatMap):
        raise ValueError("a flat_map makes several values of one")
    if isinstance(step, Only):
        kind = step.kind
        return lambda value: value if isinstance(value, kind) else DROPPED
    keep = step.keep
    return lambda value: value if keep(value) else DROPPED


def to_many(steps: Sequence[Step]) -> Callable[[Any], Iterable[Any]]:
    """The pipeline as a function from a value to all its results."""
    for at, step in enumerate(steps):
        if isinstance(step, FlatMap):
            after = to_many(steps[at + 1 :]) if steps[at + 1 :] else None
            return _expanding(to_one(steps[:at]), step.function, after)
    convert = to_one(steps)

    def single(value: Any) -> Iterable[Any]:
        result = convert(value)
        return () if result is DROPPED else (result,)

    return single


def _expanding(
    before: Callable[[Any], Any],
    function: Callable[[Any], Iterable[Any]],
    after: Callable[[Any], Iterable[Any]] | None,
) -> Callable[[Any], Iterable[Any]]:
    def run(value: Any) -> Iterable[Any]:
        value = before(value)
        if value is DROPPED:
            return ()
        # One by one: a generator may yield one object again and again, and change it in between.
        return function(value) if after is None else (each for one in function(value) for each in after(one))

    return run
