"""A test is decided once, by the visitors in their order."""

from __future__ import annotations

from random import Random

import pytest

from examples.gallery.ab_test import Counts, Verdict, Visitor, ab_test, verdict
from tests.examples.gallery.playing import at, play

RATES = {"colour": {"a": 0.1, "b": 0.5}, "font": {"a": 0.3, "b": 0.3}, "price": {"a": 0.6, "b": 0.35}}


def expected(visitors: list[Visitor]) -> list[Verdict]:
    found = list[Verdict]()
    for test in RATES:
        counts = Counts(test, [0, 0], [0, 0])
        for visitor in visitors:
            if visitor.test == test:
                (counts.a if visitor.page == "a" else counts.b)[visitor.bought] += 1
                if decided := verdict(counts):
                    found += decided
                    break
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_a_test_is_decided_by_the_visitors_in_their_order(seed: int) -> None:
    chance = Random(seed)
    visitors = list[Visitor]()
    for _ in range(900):
        test, page = chance.choice(list(RATES)), chance.choice("ab")
        visitors.append(Visitor(test, page, chance.random() < RATES[test][page]))
    harness = play(ab_test, [("visitors", one, at(number)) for number, one in enumerate(visitors)], chunk=90)
    found = sorted(harness.values("verdicts"), key=lambda one: one.test)
    assert found == expected(visitors)
    assert [(one.test, one.better) for one in found] == [("colour", "b"), ("price", "a")]
    assert all(one.visitors < 300 for one in found)
