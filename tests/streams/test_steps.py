"""Stateless steps compute what a plain loop computes, and a field's function is its path."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.sdk.declarations import DROPPED
from millwheel.streams.fields import extractor_of, path_of
from millwheel.streams.steps import Filter, FlatMap, Map, Only, Step, to_many, to_one

STEPS: list[Step] = [
    Filter(lambda value: value % 2 == 0),
    Filter(lambda value: value > 3),
    Map(lambda value: value + 1),
    Map(lambda value: value * 3),
    FlatMap(lambda value: [value, value + 10]),
    FlatMap(lambda value: range(value % 3)),
    Only(int),
    Only(str),
]
pipelines = st.lists(st.sampled_from(STEPS), max_size=5)


def naive(steps: list[Step], value: int) -> list[int]:
    values = [value]
    for step in steps:
        if isinstance(step, Filter):
            values = [one for one in values if step.keep(one)]
        elif isinstance(step, Only):
            values = [one for one in values if isinstance(one, step.kind)]
        elif isinstance(step, Map):
            values = [step.function(one) for one in values]
        else:
            values = [each for one in values for each in step.function(one)]
    return values


@given(pipelines, st.integers(-20, 20))
def test_a_pipeline_makes_what_a_loop_makes(steps: list[Step], value: int) -> None:
    assert list(to_many(steps)(value)) == naive(steps, value)


@given(pipelines.filter(lambda steps: not any(isinstance(step, FlatMap) for step in steps)), st.integers(-20, 20))
def test_a_pipeline_that_does_not_expand_makes_one_value(steps: list[Step], value: int) -> None:
    made = to_one(steps)(value)
    assert ([] if made is DROPPED else [made]) == naive(steps, value)


@pytest.mark.parametrize(
    ("function", "path"),
    [
        (lambda bid: bid.auction, "auction"),
        (lambda bid: bid.user.id, "user.id"),
        (lambda bid: str(bid.auction), None),
        (lambda bid: f"{bid.auction}", None),
        (lambda bid: bid.auction or bid.price, None),
        (lambda bid: bid.auction if bid.price > 3 else bid.seller, None),
        (lambda bid: {1: 2}.get(bid.auction, bid.auction), None),
        (lambda bid: bid["auction"], None),
        (lambda bid: bid.auction if type(bid) is SimpleNamespace else bid.seller, None),
        (lambda bid: bid.auction if hasattr(bid, "auction") else bid.seller, None),
        (lambda bid: bid.auction if bid.seller is None else bid.seller, None),
        (lambda bid: bid.auction if bid is not None else 0, None),
        (lambda bid: getattr(bid, "auction", 0), None),
        (attrgetter("user.id"), "user.id"),
        (lambda bid: bid.name.lower(), None),
        (lambda bid: bid.auction + 1, None),
        (lambda bid: bid, None),
        (lambda bid: "one", None),
        (lambda bid: bid._secret, None),  # noqa: SLF001  # what the test is about
    ],
)
def test_a_function_that_only_reads_a_field_is_its_path(function: Callable[[Any], Any], path: str | None) -> None:
    assert path_of(function) == path
    assert extractor_of((function,)).fields == (() if path is None else (path,))
