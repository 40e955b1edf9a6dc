"""Mutations that change a piece of the product's text: what does not fit the product is refused."""

from __future__ import annotations

from typing import Final

import pytest

from simulation.mutations.base import rewrite

LIMIT: Final = 5
OTHER: Final = 1


def is_large(value: int) -> bool:
    known = abs(value)
    return any(one > LIMIT for one in [known])


@pytest.mark.parametrize("new", ["taken", "(lambda: taken)()", "any(taken for one in [known])"])
def test_a_name_that_is_not_there_is_refused(new: str) -> None:
    """Such a mutation raises NameError, which any test notices: it says nothing about the mechanism."""
    before = is_large.__code__
    with pytest.raises(ValueError, match="is_large has no taken, which is used in"):
        rewrite(is_large, "any(one > LIMIT for one in [known])", new)
    assert is_large.__code__ is before


@pytest.mark.parametrize(("new", "expected"), [("known > OTHER", True), ("len([known]) > 3", False), ("value", 2)])
def test_names_that_are_there_may_be_used(new: str, expected: object) -> None:
    before = is_large.__code__
    try:
        rewrite(is_large, "any(one > LIMIT for one in [known])", new)
        assert is_large(2) == expected
    finally:
        is_large.__code__ = before


def test_a_text_that_is_not_there_once_is_refused() -> None:
    for old in ("no such text", "known"):
        with pytest.raises(ValueError, match="and not once"):
            rewrite(is_large, old, "value")
