"""Calls a user's function for many values, without a loop of Python's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["mapped"]

T = TypeVar("T")
U = TypeVar("U")


def mapped(function: Callable[[T], U], values: Sequence[T]) -> list[U]:
    """What the function makes of each value.

    ``map`` takes a StopIteration of the function for the end, and the other values are lost (G1).

    Raises:
        RuntimeError: The function has raised StopIteration, as ``next`` does without a default (PEP 479).

    >>> mapped(str, [1, 2])
    ['1', '2']
    """
    made = list(map(function, values))
    if len(made) < len(values):
        raise RuntimeError("a function has raised StopIteration, as next() does without a default")
    return made
