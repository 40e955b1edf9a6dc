"""Late records: revised results while a window is kept, and their way after that (section 4.5)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import Timestamp
from millwheel.operators import CoGroup, GroupInput
from tests.windows.hits import Hit, harness_of


@pytest.mark.guarantee("G14", section="4.5")
@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-20, 40), st.none() | st.integers(-20, 45)), max_size=30),
    st.sampled_from([(10, 10), (7, 3), (4, 1)]),
    st.integers(0, 12),
)
def test_late_records_equal_a_naive_model(
    steps: list[tuple[str, int, int | None]], shape: tuple[int, int], lateness: int
) -> None:
    size, every = shape
    assigner = windows.sliding(mw.Duration(size), mw.Duration(every))
    aggregate = windows.Aggregate(assigner, agg.count(), allowed_lateness=mw.Duration(lateness), too_late="too-late")
    harness = harness_of(aggregate)
    watermark = -100
    counts: dict[tuple[str, int], int] = defaultdict(int)
    results, too_late, revisions = [], [], defaultdict[tuple[str, int], int](int)

    def produce(page: str, start: int) -> None:
        results.append((page, start, start + size, counts[page, start], revisions[page, start]))
        revisions[page, start] += 1

    for page, stamp, to in steps:
        harness.send("hits", Hit(page), Timestamp(stamp))
        kept = False
        for start in (at for at in range(stamp - size + 1, stamp + 1) if at % every == 0):
            if watermark < start + size + lateness:
                kept = True
                counts[page, start] += 1
                if start + size <= watermark:
                    produce(page, start)
        if not kept:
            too_late.append(Hit(page))
        if to is not None and to > watermark:
            for place in sorted(counts):
                if watermark < place[1] + size <= to:
                    produce(*place)
            harness.advance(Timestamp(to))
            watermark = to
    harness.finish()
    for place in counts:
        if watermark < place[1] + size:
            produce(*place)
    found = [(r.key, r.start, r.end, r.value, r.revision) for r in harness.values("windows")]
    assert sorted(found) == sorted(results)
    assert harness.values("too-late") == too_late
    assert [harness.state("windowed", page) for page in "ab"] == [None, None], "nothing is left behind"


@pytest.mark.guarantee("G14", section="4.5")
def test_late_records_correct_a_kept_window_or_go_to_too_late() -> None:
    aggregate = windows.Aggregate(
        windows.tumbling(mw.Duration(10)), agg.count(), allowed_lateness=mw.Duration(10), too_late="too-late"
    )
    harness = harness_of(aggregate)
    harness.send("hits", Hit("a"), Timestamp(5))
    harness.advance(Timestamp(12))
    harness.send("hits", Hit("a"), Timestamp(6))
    harness.send("hits", Hit("b"), Timestamp(7))
    harness.advance(Timestamp(20))
    harness.send("hits", Hit("a", 99), Timestamp(8))
    harness.finish()
    assert [(r.key, r.start, r.value, r.revision) for r in harness.values("windows")] == [
        ("a", 0, 1, 0),
        ("a", 0, 2, 1),
        ("b", 0, 1, 0),
    ]
    assert harness.values("too-late") == [Hit("a", 99)]


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize(
    "computation",
    [
        windows.Aggregate(windows.sliding(mw.Duration(10), mw.Duration(5)), agg.count()),
        windows.SessionAggregate(windows.session(mw.Duration(10)), agg.count(), output="windows"),
        CoGroup(
            windows.tumbling(mw.Duration(20)),
            lambda hits: [Hit("both")],
            "windows",
            [GroupInput("hits", Hit, "hits")],
            Hit,
        ),
    ],
)
def test_what_windows_drop_is_counted_with_the_commit(computation: mw.Computation[Any, Any]) -> None:
    harness = harness_of(computation)
    harness.advance(Timestamp(12))
    harness.send("hits", Hit("a"), Timestamp(9))
    harness.send("hits", Hit("a"), Timestamp(11))
    harness.advance(Timestamp(40))
    harness.send("hits", Hit("a"), Timestamp(1))
    assert (harness.counts("windowed")["late"], harness.counts("windowed")["dropped"]) == (3, 1)
    harness.crash()
    assert harness.counts("windowed")["dropped"] == 1
    harness.send("hits", Hit("a"), Timestamp(2))
    assert harness.counts("windowed")["dropped"] == 2


def test_what_is_kept_or_goes_to_too_late_is_not_dropped() -> None:
    lateness = mw.Duration(10)
    aggregate = windows.Aggregate(
        windows.tumbling(lateness), agg.count(), allowed_lateness=lateness, too_late="too-late"
    )
    harness = harness_of(aggregate)
    harness.advance(Timestamp(15))
    harness.send("hits", Hit("a"), Timestamp(5))
    harness.advance(Timestamp(40))
    harness.send("hits", Hit("a"), Timestamp(5))
    assert (harness.counts("windowed")["late"], harness.counts("windowed")["dropped"]) == (2, 0)


class Dropping(mw.Computation[Hit, int]):
    """Drops each record. It fails once for page "b"."""

    fails = True

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Hit]) -> None:
        ctx.count_dropped(2)
        if ctx.key == "b" and self.fails:
            self.fails = False
            raise ValueError("once")


def test_a_hook_that_fails_has_counted_nothing() -> None:
    harness = harness_of(Dropping(), on_failure=mw.dead_letter(after=2, initial=mw.seconds(1)))
    harness.send("hits", Hit("a"), Timestamp(1))
    harness.send("hits", Hit("b"), Timestamp(1))
    harness.advance_clock(mw.seconds(3))
    assert harness.counts("windowed")["dropped"] == 4


def test_late_records_that_the_policy_drops_are_counted() -> None:
    harness = harness_of(Dropping(), late=mw.Late.DROP)
    harness.advance(Timestamp(15))
    harness.send("hits", Hit("a"), Timestamp(5))
    assert (harness.counts("windowed")["late"], harness.counts("windowed")["dropped"]) == (1, 1)
