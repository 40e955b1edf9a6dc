"""Results before a window's end: they accumulate, with increasing revisions, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import Timestamp
from millwheel.testing import TopologyHarness
from millwheel.windows.computation import Pane
from tests.windows.hits import Hit

SIZE, PERIOD = 10, 4


def counts(
    early: windows.Early | None, *, lateness: int = 0, every: int = SIZE, too_late: str | None = None
) -> mw.Topology:
    topology = mw.Topology("hits")
    windowed = (
        topology.source("hits", Hit).key_by("page").window(windows.sliding(mw.Duration(SIZE), mw.Duration(every)))
    )
    lateness = mw.Duration(lateness)
    windowed.aggregate("counts", agg.count(), early=early, allowed_lateness=lateness, too_late=too_late)
    return topology


def found(harness: TopologyHarness) -> list[tuple[str, int, int, int]]:
    return [(one.key, one.start, one.revision, one.value) for one in harness.values("counts")]


def assert_released(harness: TopologyHarness) -> None:
    for page in "ab":
        assert harness.state("counts", page) is None
        assert harness.timers("counts", page) == {}


class Model:
    """What windows with early results produce, computed from whole lists."""

    def __init__(self, period: int | None, every: int, lateness: int) -> None:
        self.period, self.every, self.lateness = period, every, lateness
        self.watermark, self.now = -30, 0
        self.counts: dict[tuple[str, int], int] = {}
        self.revisions: dict[tuple[str, int], int] = {}
        self.due: dict[tuple[str, int], int] = {}
        self.results: list[tuple[str, int, int, int]] = []

    def produce(self, place: tuple[str, int]) -> None:
        revision = self.revisions[place] = self.revisions.get(place, -1) + 1
        self.results.append((*place, revision, self.counts[place]))

    def send(self, page: str, stamp: int) -> None:
        for start in (at for at in range(stamp - SIZE + 1, stamp + 1) if at % self.every == 0):
            if self.watermark >= start + SIZE + self.lateness:
                continue
            place = page, start
            self.counts[place] = self.counts.get(place, 0) + 1
            if start + SIZE <= self.watermark or self.period == 0:
                self.produce(place)
            elif self.period is not None:
                self.due.setdefault(place, self.now + self.period)

    def pass_time(self, by: int) -> None:
        self.now += by
        for place in [place for place, at in self.due.items() if at <= self.now]:
            del self.due[place]
            self.produce(place)

    def advance(self, to: int) -> None:
        for place in self.counts:
            if self.watermark < place[1] + SIZE <= to:
                self.due.pop(place, None)
                self.produce(place)
        self.watermark = to


sending = st.tuples(st.just("send"), st.sampled_from("ab"), st.integers(-12, 12))
"""A timestamp relative to the watermark."""
passing = st.tuples(st.just("clock"), st.just(""), st.integers(1, 5))
rising = st.tuples(st.just("watermark"), st.just(""), st.integers(1, 7))
crashing = st.tuples(st.just("crash"), st.just(""), st.just(0))
steps_of = st.lists(st.one_of(sending, sending, passing, passing, rising, crashing), min_size=5, max_size=30)


@pytest.mark.guarantee("G7")
@given(
    steps=steps_of,
    early=st.sampled_from([windows.every(mw.Duration(PERIOD)), windows.each_change(), None]),
    every=st.sampled_from([SIZE, 4]),
    lateness=st.sampled_from([0, 7]),
)
def test_early_results_equal_a_naive_model(
    steps: list[tuple[str, str, int]], early: windows.Early | None, every: int, lateness: int
) -> None:
    model = Model(None if early is None else early.period, every, lateness)
    harness = TopologyHarness(counts(early, lateness=lateness, every=every, too_late="lost"), split_at=["b"])
    harness.advance(Timestamp(model.watermark))
    for kind, page, number in steps:
        if kind == "send":
            harness.send("hits", Hit(page), Timestamp(model.watermark + number))
            model.send(page, model.watermark + number)
        elif kind == "clock":
            harness.advance_clock(mw.Duration(number))
            model.pass_time(number)
        elif kind == "crash":
            harness.crash()
        else:
            harness.advance(Timestamp(model.watermark + number))
            model.advance(model.watermark + number)
    harness.finish()
    model.advance(1_000)
    assert sorted(found(harness)) == sorted(model.results)
    assert_released(harness)
    harness.advance_clock(mw.seconds(1))
    assert len(harness.values("counts")) == len(model.results), "no timer is left"


def test_early_results_come_while_records_do() -> None:
    harness = TopologyHarness(counts(windows.every(mw.Duration(PERIOD))))
    harness.send("hits", Hit("a"), Timestamp(1))
    harness.advance_clock(mw.Duration(3))
    harness.send("hits", Hit("a"), Timestamp(2))
    assert found(harness) == []
    harness.advance_clock(mw.Duration(1))
    assert found(harness) == [("a", 0, 0, 2)]
    harness.advance_clock(mw.Duration(100))  # nothing has changed
    harness.send("hits", Hit("a"), Timestamp(3))
    harness.advance_clock(mw.Duration(PERIOD))
    assert found(harness) == [("a", 0, 0, 2), ("a", 0, 1, 3)]
    harness.send("hits", Hit("a"), Timestamp(4))
    harness.advance(Timestamp(10))
    assert found(harness) == [("a", 0, 0, 2), ("a", 0, 1, 3), ("a", 0, 2, 4)]
    assert [one.timestamp for one in harness.produced("counts")] == [10, 10, 10]
    assert_released(harness)


def test_a_late_record_corrects_the_result_at_once() -> None:
    harness = TopologyHarness(counts(windows.every(mw.Duration(PERIOD)), lateness=5))
    harness.send("hits", Hit("a"), Timestamp(1))
    harness.advance(Timestamp(10))
    harness.send("hits", Hit("a"), Timestamp(2))
    assert found(harness) == [("a", 0, 0, 1), ("a", 0, 1, 2)]
    harness.advance(Timestamp(15))
    assert_released(harness)


def test_an_early_result_is_not_late_for_its_reader() -> None:
    topology = counts(windows.every(mw.Duration(PERIOD)))
    late: list[Any] = []

    class Reader(mw.Computation[windows.Result[int], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[windows.Result[int]]) -> None:
            late.append(record.late)

    topology.add(Reader, name="reader", inputs={"counts": mw.key("key")})
    harness = TopologyHarness(topology)
    harness.send("hits", Hit("a"), Timestamp(1))
    harness.advance(Timestamp(9))
    assert harness.watermark("reader") == 9, "the timer of the early result holds nothing back"
    harness.advance_clock(mw.Duration(PERIOD))
    harness.advance(Timestamp(10))
    assert late == [False, False]


def test_early_may_be_given_and_taken_away_by_an_update() -> None:
    harness = TopologyHarness(counts(None))
    harness.send("hits", Hit("a"), Timestamp(1))
    harness.update(counts(windows.every(mw.Duration(PERIOD))))
    harness.send("hits", Hit("a"), Timestamp(2))
    harness.update(counts(None))
    harness.advance_clock(mw.Duration(PERIOD))
    harness.finish()
    assert found(harness) == [("a", 0, 0, 2), ("a", 0, 1, 2)]
    assert_released(harness)


def test_a_pane_of_an_earlier_version_can_be_read() -> None:
    stored = msgspec.msgpack.encode([3, 42])
    assert msgspec.msgpack.decode(stored, type=Pane[int]) == Pane(3, 42, False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda windowed: windowed(windows.tumbling(mw.seconds(1)), {"spread": 2}),
            r"spread=2\) has a result after each record, .* take early=windows.every",
        ),
        (lambda windowed: windows.every(mw.Duration(0)), "a positive duration"),
    ],
)
def test_early_results_are_refused_where_they_cannot_be(make: Callable[[Any], Any], message: str) -> None:
    def windowed(assigner: Any, options: dict[str, Any]) -> None:
        keyed = mw.Topology("t").source("hits", Hit).key_by("page")
        keyed.window(assigner).aggregate("n", agg.count(), early=windows.each_change(), **options)

    with pytest.raises(mw.UsageError, match=message):
        make(windowed)
