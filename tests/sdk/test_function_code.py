"""What two versions of a key function are compared by."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import pytest

from millwheel.sdk.function_code import code_digest


def adding(number: Any) -> Callable[[Any], Any]:
    def add(value: Any) -> Any:
        return value + number

    return add


def recursive() -> Callable[[int], int]:
    def count(value: int) -> int:
        return count(value - 1) if value else 0

    return count


class Keyed:
    def key(self, value: Any) -> Any:
        return value

    def __call__(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (lambda value: value % 2, lambda other: other % 2, True),
        (lambda value: value % 2, lambda value: value % 3, False),
        (lambda value: value.name, lambda value: value.note, False),
        (lambda value: value in {"a", "b"}, lambda value: value in {"b", "a"}, True),
        (lambda value: value in {"a", "b"}, lambda value: value in {"b", "c"}, False),
        (lambda value: [one for one in value if one], lambda value: [one for one in value if not one], False),
        (lambda value, by=2: value % by, lambda value, by=3: value % by, False),
        (adding(1), adding(1), True),
        (adding(1), adding(2), False),
        (adding(1), adding(True), False),
        (adding({"a": [1]}), adding({"a": [2]}), False),
        (adding(lambda: 1), adding(lambda: 2), False),
        (partial(pow, 2), partial(pow, 3), False),
        (itemgetter("a"), itemgetter("b"), False),
        (str.lower, str.upper, False),
        (Keyed(), Keyed(), True),
        (Keyed().key, Keyed().key, True),
        (recursive(), recursive(), True),
    ],
)
def test_functions_are_compared_by_code_and_values(one: Any, other: Any, *, same: bool) -> None:
    assert (code_digest([one]) == code_digest([other])) == same


def test_a_lambda_of_the_product_keeps_its_name() -> None:
    """An upgrade of MillWheel may compile it differently, and must not be taken for another key."""
    one, other = (lambda value: value % 2), (lambda value: value % 3)
    for each in (one, other):
        each.__module__ = "millwheel.streams.stream"
        each.__qualname__ = "Stream.enrich.<locals>.<lambda>"
    assert code_digest([one]) == code_digest([other])


def test_a_digest_is_the_same_in_every_process() -> None:
    program = (
        "from millwheel.sdk.function_code import code_digest; from tests.sdk.test_function_code import adding; "
        "print(code_digest([lambda value: value in {'a', 'b', 'c'}, adding({'a', 'b', 'c'})]))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in "123"
    }
    assert len(found) == 1
