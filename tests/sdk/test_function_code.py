"""The comparison of two versions of a key function."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from functools import cache, partial
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


class Kind(Enum):
    A = 1
    B = 2


def reading_names(names: tuple[str, ...]) -> Any:
    """A lambda that reads a global collection of its module."""
    return eval("lambda value: [value[name] for name in NAMES]", {"NAMES": names})


def named(function: Any) -> Any:
    """A lambda that was given a name. It is still known by its code."""
    function.__name__ = "bucket"
    return function


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
        (cache(lambda value: value % 2), cache(lambda value: value % 3), False),
        (lambda value, kind=Kind.A: kind, lambda value, kind=Kind.B: kind, False),
        (lambda value, of=re.compile("a"): of, lambda value, of=re.compile("b"): of, False),
        (reading_names(("a", "b")), reading_names(("a", "b")), True),
        (reading_names(("a", "b")), reading_names(("a", "c")), False),
        (named(lambda value: value % 2), named(lambda value: value % 3), False),
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


def test_the_environment_of_a_process_is_no_part_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = os.environ
    before = code_digest([lambda value: environment.get("REGION", value)])
    monkeypatch.setenv("MILLWHEEL_UNRELATED", "1")
    assert code_digest([lambda value: environment.get("REGION", value)]) == before
