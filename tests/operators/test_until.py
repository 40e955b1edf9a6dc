"""Records up to a condition, against a loop over the records of a key (G1, G13)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000


class Answer(msgspec.Struct, frozen=True):
    user: int
    number: int
    right: bool = False


steps_of = st.lists(
    st.tuples(st.integers(-4, 9), st.integers(0, 1), st.booleans(), st.none() | st.integers(0, 6), st.booleans()),
    max_size=20,
)
"""Of each record: its time after the watermark, its key, whether it is the last; then how far the watermark rises."""


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def quiz(ordered: bool = False, **options: Any) -> mw.Topology:
    topology = mw.Topology("quiz")
    answers: Any = topology.source("answers", Answer).key_by("user")
    answers = answers.ordered_by_time("number") if ordered else answers
    answers.until("tried", lambda answer: answer.right, rest="more", **options)
    return topology


@pytest.mark.guarantee("G1", section="4.4")
@given(steps=steps_of, keep=st.none() | st.integers(1, 8))
def test_records_pass_until_the_condition_and_again_later(
    steps: list[tuple[int, int, bool, int | None, bool]], keep: int | None
) -> None:
    harness = TopologyHarness(quiz(keep=keep and mw.Duration(keep)), split_at=["1"])
    harness.advance(at(0))
    watermark, begins = 0, dict[int, int]()
    passed, more = [], []
    for number, (shift, user, right, rise, crashes) in enumerate(steps):
        answer = Answer(user, number, right)
        harness.send("answers", answer, at(watermark + shift))
        if user in begins:
            more.append(answer)
        else:
            passed.append(answer)
            if right:
                begins[user] = max(watermark + shift, watermark) + (10**9 if keep is None else keep)
        if crashes:
            harness.crash()
        if rise is not None:
            watermark += rise
            harness.advance(at(watermark))
            begins = {user: time for user, time in begins.items() if time > watermark}
    assert harness.values("tried") == passed
    assert harness.values("more") == more
    assert {user for user in range(2) if harness.state("tried", user) is not None} == {*begins}


@pytest.mark.guarantee("G13", section="4.6")
def test_a_key_that_is_only_to_begin_again_holds_no_watermark() -> None:
    harness = TopologyHarness(quiz(keep=mw.hours(1)))
    harness.send("answers", Answer(1, 1, right=True), at(0))
    harness.advance(at(100))
    assert harness.watermark("tried") == at(100)
    harness.advance(at(mw.hours(1)))
    assert harness.state("tried", 1) is None


def test_one_name_for_both_streams_is_refused() -> None:
    keyed = mw.Topology("t").source("numbers", int).key_by(mw.everything)
    with pytest.raises(mw.UsageError, match=r"until\('out', rest='out'\) has one name for two streams"):
        keyed.until("out", bool, rest="out")
