"""An opaque id is kept exactly until the horizon has passed all timestamps that its record came with (6.1.1)."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.worker.dedup import Dedup, OpaqueIds, PositionIds, Sender

TIMES = st.integers(1, 12)
SLACK = 100


class Batch(NamedTuple):
    """One delivery: its records' timestamps, its sender's watermark, and the receiver's knowledge at that time."""

    timestamps: list[int]
    watermark: int
    heard: int
    known: int

    def kept_until(self) -> int:
        """The horizon up to which its ids are known."""
        return max(*self.timestamps, self.watermark, self.heard, self.known)


BATCHES = st.lists(
    st.builds(Batch, st.lists(TIMES, min_size=1, max_size=3), TIMES, TIMES, TIMES), min_size=1, max_size=5
)


def ids_of(number: int, batch: Batch) -> list[bytes]:
    return [b"%08d%08d" % (number, index) for index in range(len(batch.timestamps))]


@pytest.mark.guarantee("G1", section="6.1.1")
@given(BATCHES, st.integers(1, 5), st.booleans(), TIMES, st.integers(0, 5))
@example([Batch([5, 5], 1, 1, 1)], 1, True, 5, 0)
@settings(max_examples=200, report_multiple_bugs=False)
def test_an_id_is_kept_until_the_horizon_passes_its_record(
    batches: list[Batch], commit_size: int, sealed: bool, horizon: int, slack: int
) -> None:
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=2)
    waiting = []
    known = 0
    for number, batch in enumerate(batches):
        known = max(known, batch.known)
        dedup.advance("weak.1", known, SLACK)
        sender = Sender("w1", 1, ALL_KEYS, "weak.1", batch.watermark, batch.heard)
        ids = ids_of(number, batch)
        verdict = dedup.check(OpaqueIds(ids), [b"a"] * len(ids), batch.timestamps, sender)
        assert verdict.all_fresh
        waiting.append((verdict, None))
        if len(waiting) == commit_size or number == len(batches) - 1:
            dedup.committed(dedup.take(waiting))
            waiting = []
    if sealed:
        dedup.seal()
    dedup.advance("weak.1", max(known, horizon + slack), max(known - horizon, slack))
    for number, batch in enumerate(batches):
        if batch.kept_until() >= horizon:
            ids = ids_of(number, batch)
            again = Sender("w1", 1, ALL_KEYS, "weak.1")
            verdict = dedup.check(OpaqueIds(ids), [b"a"] * len(ids), batch.timestamps, again)
            assert list(verdict.duplicates) == list(range(len(ids)))


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_run_of_ids_is_kept_as_long_as_its_longest() -> None:
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=2_048)
    sender = Sender("w1", 1, ALL_KEYS, "weak.1")
    for time in (20, 10):
        verdict = dedup.check(OpaqueIds([b"%016d" % time]), [b"a"], [time], sender)
        dedup.committed(dedup.take([(verdict, None)]))
    dedup.advance("weak.1", 15, 0)
    again = dedup.check(OpaqueIds([b"%016d" % 20]), [b"a"], [20], sender)
    assert list(again.duplicates) == [0]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_segment_is_kept_as_long_as_its_longest_id() -> None:
    dedup = Dedup(ALL_KEYS, "r1", segment_ids=2_048)
    sender = Sender("w1", 1, ALL_KEYS, "weak.1")
    for time in (20, 10):
        ids = [b"%08d%08d" % (time, index) for index in range(1_024)]
        verdict = dedup.check(OpaqueIds(ids), [b"a"] * 1_024, [time] * 1_024, sender)
        dedup.committed(dedup.take([(verdict, None)]))
    assert len(dedup.seal()) == 1
    dedup.advance("weak.1", 15, 0)
    kept = [b"%08d%08d" % (20, index) for index in range(1_024)]
    again = dedup.check(OpaqueIds(kept), [b"a"] * 1_024, [20] * 1_024, sender)
    assert list(again.duplicates) == list(range(1_024))


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_sequence_with_records_on_their_way_is_not_forgotten() -> None:
    dedup = Dedup(ALL_KEYS, "r1")
    sender = Sender("j1", 1, ALL_KEYS, "up.1")
    dedup.admit("j1")
    taken = dedup.check(PositionIds("j1", 0, [1]), [b"a"], [10], sender)
    dedup.retire("j1")
    dedup.committed(dedup.take([(taken, None)]))
    copy = dedup.check(PositionIds("j1", 0, [1]), [b"a"], [10], sender)
    assert list(copy.duplicates) == [0]


@pytest.mark.guarantee("G3", section="6.2")
def test_what_is_known_of_sequencers_never_falls() -> None:
    """A broadcast that names an older owner or process may come late."""
    dedup = Dedup(ALL_KEYS, "r1")
    inner = KeyInterval(b"a", b"b")
    for span, sequencer in ((inner, 5), (inner, 3), (ALL_KEYS, 3)):
        dedup.learn("up.1", [(span, sequencer), ("injector/in/p", sequencer)])
    for origin, keys in (("j1", inner), ("injector/in/p", None)):
        older = Sender(origin, 4, keys, "up.1" if keys else "injector/in")
        assert dedup.check(PositionIds("s1", 0, [1]), [b"a"], [10], older).outcome.name == "REFUSED_SEQUENCER"
