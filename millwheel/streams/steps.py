"""Stateless steps between a stream and what reads it: filters and functions, which run without a hop of their own.

A *pipeline* is a sequence of steps. It is compiled into one function, which runs inside the computation that produces
or reads the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from millwheel.sdk.declarations import DROPPED
from millwheel.sdk.expressions import Expression, expression_of
from millwheel.sdk.function_code import may_change_its_argument
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.selections import Selection, selection_of

__all__ = [
    "Branch",
    "Filter",
    "FlatMap",
    "Map",
    "Only",
    "Step",
    "are_disjoint",
    "compiled",
    "divide",
    "drops_only",
    "expands",
    "keeps_value",
    "key_before",
    "known_steps",
    "on_a_copy",
    "to_many",
    "to_one",
    "until_last_filter",
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
        return "".join([self.stream, *map(_shown, self.steps)])


def _shown(step: Step) -> str:
    """A step in a text. An expression says what it is, and a function does not."""
    function = getattr(step, "keep", None) or getattr(step, "function", None)
    expression = expression_of(function)
    return f".{type(step).__name__.lower()}{'' if expression is None else f'({expression!r})'}"


def expands(steps: Sequence[Step]) -> bool:
    """Whether one value may become several."""
    return any(isinstance(step, FlatMap) for step in steps)


def keeps_value(steps: Sequence[Step]) -> bool:
    """Whether each value that passes is unchanged, and of the same type as those that do not."""
    return all(isinstance(step, Filter) for step in steps)


def drops_only(steps: Sequence[Step]) -> bool:
    """Whether each value that passes is the same object, unchanged. Its class may be one of several of the stream."""
    return all(isinstance(step, Filter | Only) and not _may_change(step) for step in steps)


def known_steps(steps: Sequence[Step]) -> tuple[Expression | Selection, ...] | None:
    """What the steps do, in expressions and selections alone. None: one of them calls another function."""
    found: list[Expression | Selection] = []
    for step in steps:
        known: Expression | Selection | None = None
        if isinstance(step, Filter):
            known = expression_of(step.keep)
        elif isinstance(step, Map):
            known = selection_of(step.function)
        if known is None:
            return None
        found.append(known)
    return tuple(found)


def key_before(steps: Sequence[Step], extractor: KeyExtractor) -> tuple[KeyExtractor, Any] | None:
    """The same key, read from the values before the steps, and the type of these. None: only the steps say it.

    There is a selection among the steps, and all that is no selection is a filter.
    """
    fields, record_type, found = extractor.fields, None, False
    for step in reversed(steps):
        if isinstance(step, Filter):
            continue
        selection = selection_of(step.function) if isinstance(step, Map) else None
        sources = [] if selection is None else [selection.source_of(path) for path in fields]
        if selection is None or not sources or None in sources:
            return None
        fields, record_type, found = tuple(map(str, sources)), selection.record_type, True
    return (replace(extractor, fields=fields), record_type) if found else None


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


def divide(steps: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    """The steps before the first FlatMap, and those from it on."""
    at = next((place for place, step in enumerate(steps) if isinstance(step, FlatMap)), len(steps))
    return tuple(steps[:at]), tuple(steps[at:])


def until_last_filter(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps that decide whether a value passes: those up to the last one that drops values."""
    last = max((place for place, step in enumerate(steps, 1) if isinstance(step, Filter | Only)), default=0)
    return steps[:last]


def to_one(steps: Sequence[Step]) -> Callable[[Any], Any]:
    """The pipeline as a function from a value to its only result, or to DROPPED. It must not expand."""
    if len(steps) == 1 and isinstance(steps[0], Map):
        return steps[0].function
    return compiled(steps, "made", "dropped", dropped=DROPPED)


def to_many(steps: Sequence[Step]) -> Callable[[Any], Iterable[Any]]:
    """The pipeline as a function from a value to all its results."""
    first, rest = divide(steps)
    if not rest:
        return compiled(first, "(made,)", "()")
    expand = _expanding(rest)
    return compiled(first, "expand(made)", "()", expand=expand) if first else expand


def _expanding(steps: Sequence[Step]) -> Callable[[Any], Iterable[Any]]:
    """The pipeline of a FlatMap and the steps after it."""
    function: Callable[[Any], Iterable[Any]] = steps[0].function  # type: ignore[union-attr]
    if len(steps) == 1:
        return function
    after = to_many(steps[1:])
    # One by one: a generator may yield one object again and again, and change it in between.
    return lambda value: (each for one in function(value) for each in after(one))


def compiled(steps: Sequence[Step], result: str, otherwise: str, **names: Any) -> Callable[[Any], Any]:
    """A function that runs a pipeline, from source code: it runs for each record, and calls take most of its time.

    Args:
        steps: The steps. They do not expand.
        result: What the function returns: an expression of ``made``, which is the pipeline's result.
        otherwise: What it returns for a value that a filter drops: an expression of ``value``, which is that value.
        names: What both expressions use beside these.
    """
    lines = ["def run(value):", "    made = value"]
    for number, step in enumerate(steps):
        called = f"step_{number}"
        if isinstance(step, Map):
            names[called] = step.function
            lines.append(f"    made = {called}(made)")
        elif isinstance(step, Filter):
            names[called] = step.keep
            lines.append(f"    if not {called}(made): return {otherwise}")
        elif isinstance(step, Only):
            names[called] = step.kind
            lines.append(f"    if not isinstance(made, {called}): return {otherwise}")
        else:
            raise ValueError("a flat_map makes several values of one")
    exec("\n".join([*lines, f"    return {result}"]), names)
    run: Callable[[Any], Any] = names["run"]
    return run
