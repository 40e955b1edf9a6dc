"""Sessions in two phases equal sessions in one (section 8.4)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import LAST_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from millwheel.testing import TopologyHarness
from tests.windows.hits import AGGREGATORS, Hit

SPREAD = 3
PERIOD = 4
PAGES = ("a", "b|")

gaps_of = st.sampled_from([1, 7, 32, 100, 1_000])
Step = tuple[str, int, int, int, bool]


def steps_of(earliest: int) -> st.SearchStrategy[list[Step]]:
    """Each record: its page, its time after the watermark, its size, how much the watermark rises, and a crash or not.

    ``earliest``: the least time after the watermark.
    """
    return st.lists(
        st.tuples(
            st.sampled_from(PAGES),
            st.integers(earliest, 90),
            st.integers(0, 9),
            st.sampled_from([0, 0, 5, 40]),
            st.booleans(),
        ),
        max_size=25,
    )


def sessions(gap: int, **options: Any) -> Any:
    topology = mw.Topology("hot")
    windowed: Any = topology.source("hits", Hit).key_by("page").window(windows.session(mw.Duration(gap)))
    windowed.aggregate("pages", agg.count(), spread=SPREAD, **options)
    return topology, windowed


Sent = tuple[str, int, int]
"""A record's page and time, and the watermark that it met."""


def play(topology: mw.Topology, steps: list[Step], clock: int = 0) -> tuple[TopologyHarness, list[Sent]]:
    """Send all records."""
    harness, watermark, sent = TopologyHarness(topology, split_at=["2"]), 0, list[Sent]()
    harness.advance(Timestamp(0))
    for page, shift, size, rise, crashes in steps:
        sent.append((page, watermark + shift, watermark))
        harness.send("hits", Hit(page, size), Timestamp(watermark + shift))
        if crashes:
            harness.crash()
        harness.advance_clock(mw.Duration(clock))
        watermark += rise
        harness.advance(Timestamp(watermark))
    harness.finish()
    return harness, sent


def assert_released(harness: TopologyHarness) -> None:
    for page in PAGES:
        assert (harness.state("pages", page), harness.timers("pages", page)) == (None, {})
        shards = [f"{shard}|{page}" for shard in range(SPREAD)]
        assert [harness.state("pages-partial", shard) for shard in shards] == [None] * SPREAD
        assert [harness.timers("pages-partial", shard) for shard in shards] == [{}] * SPREAD


def swept(sent: list[tuple[str, int]], gap: int) -> list[tuple[str, int, int, int]]:
    """The sessions of pages and times."""
    found = list[tuple[str, int, int, int]]()
    for page, at in sorted(sent):
        if found and found[-1][0] == page and at < found[-1][2]:
            found[-1] = (page, found[-1][1], at + gap, found[-1][3] + 1)
        else:
            found.append((page, at, at + gap, 1))
    return found


def last_results(harness: TopologyHarness) -> list[tuple[str, int, int, int]]:
    """The results that no other one replaces."""
    every = harness.values("pages")
    return sorted(
        (one.key, one.start, one.end, one.value)
        for one in every
        if not any(
            one.key == other.key and other.start <= one.start and one.end <= other.end and other.revision > one.revision
            for other in every
        )
    )


@pytest.mark.paper(section="8.4")
@given(steps=steps_of(0), gap=gaps_of, kind=st.sampled_from(sorted(AGGREGATORS)))
def test_sessions_that_are_spread_are_those_that_are_not(steps: list[Step], gap: int, kind: str) -> None:
    """No record is late. So each session has one result."""
    topology, windowed = sessions(gap)
    windowed.aggregate("one", AGGREGATORS[kind]())
    windowed.aggregate("two", AGGREGATORS[kind](), spread=2)
    harness, _ = play(topology, steps)
    one, two = (sorted(map(repr, harness.produced(name))) for name in ("one", "two"))
    assert two == one
    assert_released(harness)


@pytest.mark.guarantee("G14", section="8.4")
@given(
    steps=steps_of(-150),
    gap=gaps_of,
    lateness=st.sampled_from([0, 10, 150]),
    early=st.sampled_from([None, windows.every(mw.Duration(PERIOD))]),
)
def test_a_record_is_in_one_spread_session_or_is_too_late(
    steps: list[Step], gap: int, lateness: int, early: windows.Early | None
) -> None:
    topology, _ = sessions(gap, allowed_lateness=mw.Duration(lateness), early=early, too_late="lost")
    harness, sent = play(topology, steps, 3)
    kept = [(page, at) for page, at, watermark in sent if watermark < at + gap + lateness]
    assert len(harness.values("lost")) == len(sent) - len(kept)
    assert sum(one[3] for one in last_results(harness)) == len(kept)
    if lateness == 150:
        assert last_results(harness) == swept(kept, gap)
    assert_released(harness)
    count = len(harness.values("pages"))
    harness.advance_clock(mw.seconds(1))
    assert len(harness.values("pages")) == count, "no timer is left"


@pytest.mark.paper(section="8.4")
def test_a_part_that_goes_on_delays_other_sessions_briefly() -> None:
    """A part has a sixteenth of the gap."""
    topology, _ = sessions(160)
    harness = TopologyHarness(topology)
    harness.send("hits", Hit("a"), Timestamp(1_000))
    harness.send("hits", Hit("b|"), Timestamp(1_155))  # its part is from 1150 to 1160
    harness.advance(Timestamp(1_159))
    assert harness.values("pages") == []
    harness.advance(Timestamp(1_160))
    assert [(one.key, one.start, one.end) for one in harness.values("pages")] == [("a", 1_000, 1_160)]


@pytest.mark.guarantee("G7", section="8.4")
def test_a_session_waits_for_a_part_that_goes_on() -> None:
    harness = TopologyHarness(sessions(160)[0])
    for at in (1_005, 1_163):  # the second part is from 1160 to 1170, and the first record's session ends at 1165
        harness.send("hits", Hit("a"), Timestamp(at))
    harness.advance(Timestamp(1_166))
    assert harness.values("pages") == []
    harness.finish()
    assert [(one.start, one.end, one.value) for one in harness.values("pages")] == [(1_005, 1_323, 2)]


@pytest.mark.guarantee("G14", section="8.4")
def test_a_late_part_joins_two_sessions_with_results() -> None:
    topology, _ = sessions(160, allowed_lateness=mw.Duration(500))
    harness = TopologyHarness(topology)
    for at in (1_000, 1_200):
        harness.send("hits", Hit("a"), Timestamp(at))
    harness.advance(Timestamp(1_500))
    harness.send("hits", Hit("a"), Timestamp(1_100))
    found = [(one.start, one.end, one.value, one.revision) for one in harness.values("pages")]
    assert found == [(1_000, 1_160, 1, 0), (1_200, 1_360, 1, 0), (1_000, 1_360, 3, 1)]


@pytest.mark.guarantee("G7", section="8.4")
@pytest.mark.parametrize("early", [None, windows.every(mw.Duration(PERIOD))])
def test_a_part_holds_before_all_records_that_are_to_come(early: windows.Early | None) -> None:
    """Regression: the watermark was in the part when it began. The hold was that of the first record to come."""
    harness = TopologyHarness(sessions(160, early=early)[0])
    harness.send("hits", Hit("a"), Timestamp(847))  # its session ends at 1007
    harness.advance(Timestamp(1_005))
    for at in (1_008, 1_006):  # none is late
        harness.send("hits", Hit("a"), Timestamp(at))
    harness.advance(Timestamp(1_009))
    harness.advance_clock(mw.Duration(2 * PERIOD))
    harness.finish()
    assert [(one.start, one.end, one.value) for one in harness.values("pages")][-1] == (847, 1_168, 3)
    assert len(last_results(harness)) == 1


@pytest.mark.guarantee("G8", section="8.4")
def test_a_part_that_a_late_record_opened_goes_back() -> None:
    """Regression: the result of the part was refused for ever, and held the watermark."""
    harness = TopologyHarness(sessions(160)[0])
    harness.advance(Timestamp(1_008))
    for at in (1_006, 1_003):  # both are in the part from 1000 to 1010
        harness.send("hits", Hit("a"), Timestamp(at))
    harness.finish()
    assert [(one.start, one.end, one.value) for one in harness.values("pages")] == [(1_003, 1_166, 2)]


def same_size() -> agg.Aggregator[Any, Any]:
    """The size of all records, or None if they differ: no further record changes that."""

    def merge(a: int | None, b: int | None) -> int | None:
        return b if a == -1 else a if b in (-1, a) else None

    def add(a: int | None, record: mw.Record[Hit]) -> int | None:
        return merge(a, record.value.size)

    return agg.Aggregator(int | None, lambda: -1, add, merge, lambda a: a, int | None)


@pytest.mark.paper(section="8.4")
def test_none_may_be_an_accumulator_of_a_spread_session() -> None:
    """Regression: None was taken for an empty session, so the next part replaced it."""
    topology = mw.Topology("hot")
    windowed: Any = topology.source("hits", Hit).key_by("page").window(windows.session(mw.Duration(160)))
    for name, spread in (("one", 1), ("two", 2)):
        windowed.aggregate(name, same_size(), spread=spread)
    harness = TopologyHarness(topology)
    for at, size in ((1_000, 1), (1_001, 2), (1_050, 1), (1_100, 1)):
        harness.send("hits", Hit("a", size), Timestamp(at))
    harness.finish()
    assert [[one.value for one in harness.values(name)] for name in ("one", "two")] == [[None], [None]]


@pytest.mark.parametrize("stamp", [MIN_TIMESTAMP, LAST_TIMESTAMP])
def test_spread_sessions_reach_to_the_ends_of_time(stamp: int) -> None:
    harness = TopologyHarness(sessions(160)[0])
    harness.send_all("hits", [(Hit("a", size), Timestamp(stamp)) for size in range(5)])
    harness.finish()
    assert [(one.key, one.value) for one in harness.values("pages")] == [("a", 5)]


def test_an_update_changes_the_options_of_spread_sessions() -> None:
    harness = TopologyHarness(sessions(160)[0])
    forms: list[dict[str, Any]] = [{"early": windows.every(mw.Duration(PERIOD))}, {"allowed_lateness": 50}, {}]
    for size, options in enumerate(forms):
        harness.send("hits", Hit("a", size), Timestamp(1_000 + size))
        harness.update(sessions(160, **options)[0])
    harness.finish()
    harness.advance_clock(mw.seconds(1))
    assert [(one.value, one.revision) for one in harness.values("pages")] == [(3, 0)]
    assert harness.failures == []
