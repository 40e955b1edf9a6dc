"""The types of a step's results and states: as given, or what its function is annotated with."""

from __future__ import annotations

import typing
from collections.abc import Awaitable
from typing import Any

from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import returned_type, type_name

__all__ = ["awaited_result", "item_of", "item_result", "one_result", "state_of_initial", "updated_result"]


def one_result(name: str, function: Any, to: Any) -> Any:
    """The type of the results of a function that returns one.

    Raises:
        UsageError: ``to`` is None, and the function is not annotated.
    """
    return to or _stated(name, function, returned_type(function), "its result")


def awaited_result(name: str, function: Any, to: Any) -> Any:
    """The same for an asynchronous function, or one that returns an awaitable."""
    returned = returned_type(function)
    origin, arguments = typing.get_origin(returned), typing.get_args(returned)
    if isinstance(origin, type) and issubclass(origin, Awaitable):
        returned = arguments[-1]
    return to or _stated(name, function, returned, "its result")


def item_result(name: str, function: Any, to: Any) -> Any:
    """The same for a function that returns several results."""
    return to or _stated(name, function, item_of(returned_type(function)), "the list of its results")


def updated_result(name: str, function: Any, to: Any) -> Any:
    """The same for a function that returns the next state with several results."""
    parts = typing.get_args(returned_type(function))
    results = item_of(parts[1]) if len(parts) == 2 else None
    return to or _stated(name, function, results, "tuple[the next state, the list of its results]")


def state_of_initial(name: str, function: Any, initial: Any) -> Any:
    """The type of the states of a function whose first parameter is not annotated: the class of the first state.

    Raises:
        UsageError: The first state is None. It says nothing about the others.
    """
    if initial is None:
        called = getattr(function, "__qualname__", type_name(type(function)))
        raise UsageError(
            f"nothing says the type of the states of step {name!r}, because the first one is None: annotate the first "
            f"parameter of {called}, by names that its module knows, or give the type as state="
        )
    return type(initial)


def item_of(collection: Any) -> Any:
    """The type of a collection's items: int for ``list[int]``. None if its annotation does not say it."""
    arguments = typing.get_args(collection)
    return arguments[0] if arguments else None


def _stated(name: str, function: Any, found: Any, wanted: str) -> Any:
    if found is None or found is type(None):
        called = getattr(function, "__qualname__", type_name(type(function)))
        raise UsageError(
            f"nothing says the type of the results of step {name!r}: annotate {called} to return {wanted}, by names "
            "that its module knows, or give the type after the function"
        )
    return found
