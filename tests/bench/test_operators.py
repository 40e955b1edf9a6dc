"""Each operator produces what the same program by hand does: a benchmark of other programs would mean nothing."""

from __future__ import annotations

import pytest

from bench.operators.__main__ import PAIRS
from bench.operators.records import CHUNK, Pair
from bench.operators.turns import Compared, compare


@pytest.mark.parametrize("name", PAIRS)
def test_an_operator_does_what_its_twin_by_hand_does(name: str) -> None:
    """The benchmark raises an error if results differ."""
    found = compare(PAIRS[name], 6 * CHUNK, 1)
    assert found.ratio > 0
    assert found.microseconds(by_hand=True) > 0


def test_programs_that_differ_are_not_compared() -> None:
    doubled = Pair("wrong", lambda bids, _: bids.key_by("auction").deduplicate("out"), PAIRS["latest"].by_hand)
    with pytest.raises(RuntimeError, match="wrong: both programs"):
        compare(doubled, CHUNK, 1)


def test_each_chunk_counts_with_the_best_of_its_runs() -> None:
    found = Compared("x", 1_000)
    for library, by_hand in (([3.0, 1.0], [1.0, 1.0]), ([1.0, 5.0], [2.0, 1.0])):
        found.add(False, library)
        found.add(True, by_hand)
    assert found.microseconds(by_hand=False) == 2_000
    assert found.ratio == 1
    assert found.ratios == (2.0, 2.0)
