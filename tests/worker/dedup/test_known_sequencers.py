"""What a receiver knows of its senders' sequencers (6.2; G13)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import Dedup
from millwheel.worker.dedup.known_sequencers import SequencerMap, Span

KEYS = [b"", b"a", b"b", b"c", b"d"]


def intervals() -> st.SearchStrategy[tuple[bytes, bytes | None]]:
    places = st.tuples(st.integers(0, len(KEYS) - 1), st.integers(1, len(KEYS)))
    ends = [*KEYS, None]
    return places.filter(lambda place: place[0] < place[1]).map(lambda place: (KEYS[place[0]], ends[place[1]]))


@given(st.lists(st.tuples(intervals(), st.integers(1, 6))), intervals())
def test_the_highest_sequencer_of_each_key_is_known(
    facts: list[tuple[tuple[bytes, bytes | None], int]], asked: tuple[bytes, bytes | None]
) -> None:
    known, naive = SequencerMap(), dict.fromkeys(KEYS, 0)
    for span, sequencer in facts:
        before = dict(naive)
        for key in KEYS:
            if key in KeyInterval(*span):
                naive[key] = max(naive[key], sequencer)
        assert known.learn("up", span, sequencer) == (naive != before)
    assert known.highest("up", asked) == max(naive[key] for key in KEYS if key in KeyInterval(*asked))
    rows = known.rows()
    for (_, left, number), (_, right, other) in pairwise(rows):
        assert not (isinstance(left, tuple) and isinstance(right, tuple)) or left[1] != right[0] or number != other
    again = SequencerMap()
    for row in rows:
        again.learn(*row)
    assert again.rows() == rows


@pytest.mark.guarantee("G13", section="6.2")
@pytest.mark.parametrize("span", [ALL_KEYS, "injector/in/p"])
def test_an_owner_without_commits_keeps_one_sequencer_of_each(span: KeyInterval | str) -> None:
    """Each move of a sending interval added a fact to those for the next commit, which may never come."""
    dedup = Dedup(ALL_KEYS, "r1")
    for sequencer in range(1, 1_000):
        dedup.learn("up.1", [(span, sequencer)])
    expected: tuple[str, Span] = ("", span) if isinstance(span, str) else ("up.1", (span.start, span.end))
    assert dedup.take([]).sequencers == [(*expected, 999)]
    assert dedup.take([]).sequencers == []
