"""Aggregation in two phases equals aggregation in one (section 8.4)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.time import LAST_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from millwheel.testing import TopologyHarness
from tests.windows.hits import AGGREGATORS, Hit


@pytest.mark.paper(section="8.4")
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from("ab|"), st.integers(-9, 30), st.integers(0, 9), st.booleans()), max_size=40),
    st.sampled_from([(10, 10), (7, 3)]),
    st.sampled_from(sorted(AGGREGATORS)),
)
def test_two_phases_give_what_one_gives(
    hits: list[tuple[str, int, int, bool]], shape: tuple[int, int], kind: str
) -> None:
    topology = mw.Topology("hot")
    topology.source("hits", Hit)
    assigner, aggregator = windows.sliding(*map(mw.Duration, shape)), AGGREGATORS[kind]()
    topology.add(windows.Aggregate(assigner, aggregator, output="once"), inputs={"hits": mw.key("page")})
    windows.two_phase(
        topology,
        "pages",
        source="hits",
        key_of=lambda hit: hit.page,
        windows=assigner,
        aggregator=aggregator,
        output="twice",
        shards=3,
    )
    harness = TopologyHarness(topology)
    for page, stamp, amount, advances in hits:
        if advances:
            harness.advance(Timestamp(stamp))
        harness.send("hits", Hit(page, amount), Timestamp(stamp + amount % 3 - 1))
    harness.finish()
    once, twice = (sorted((r.key, r.start, r.end, r.value) for r in harness.values(s)) for s in ("once", "twice"))
    assert once == twice


@pytest.mark.paper(section="8.4")
@pytest.mark.parametrize("stamp", [MIN_TIMESTAMP, LAST_TIMESTAMP])
def test_two_phases_reach_to_the_ends_of_time(stamp: int) -> None:
    topology = mw.Topology("hot")
    topology.source("hits", Hit)
    windows.two_phase(
        topology,
        "pages",
        source="hits",
        key_of=lambda hit: hit.page,
        windows=windows.tumbling(mw.seconds(1)),
        aggregator=agg.count(),
        output="counts",
    )
    harness = TopologyHarness(topology)
    harness.send_all("hits", [(Hit("a", size), Timestamp(stamp)) for size in range(5)])
    harness.finish()
    assert [(r.key, r.value) for r in harness.values("counts")] == [("a", 5)]


@pytest.mark.paper(section="8.4")
def test_two_phases_take_protobuf_messages() -> None:
    topology = mw.Topology("hot")
    topology.source("sources", StringValue)
    windows.two_phase(
        topology,
        "words",
        source="sources",
        key_of=lambda word: word.value[:1],
        windows=windows.tumbling(mw.Duration(10)),
        aggregator=agg.count(),
        output="counts",
    )
    harness = TopologyHarness(topology)
    harness.send_all("sources", [(StringValue(value=f"a{n}"), Timestamp(5)) for n in range(9)])
    harness.finish()
    assert [(r.key, r.value) for r in harness.values("counts")] == [("a", 9)]


@pytest.mark.paper(section="8.4")
def test_a_record_has_the_same_shard_in_every_process() -> None:
    code = (
        "import millwheel as mw; from millwheel import agg, windows; t = mw.Topology('t'); t.source('s', set[str])\n"
        "windows.two_phase(t, 'n', source='s', key_of=len, windows=windows.tumbling(mw.seconds(1)), "
        "aggregator=agg.count(), output='o')\n"
        "print(t.plan().computations['n-partial'].inputs['s'].extract(set(map(str, range(20)))))"
    )
    shards = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(shards) == 1


@pytest.mark.paper(section="8.4")
@settings(max_examples=40)
@given(
    hits=st.lists(
        st.tuples(st.sampled_from(["a", "b|", "c"]), st.integers(-9, 30), st.integers(0, 9), st.booleans()), max_size=30
    ),
    shape=st.sampled_from([(10, 10), (7, 3)]),
    spread=st.integers(2, 5),
    crash_at=st.integers(0, 30),
)
def test_a_step_is_spread_by_one_word(
    hits: list[tuple[str, int, int, bool]], shape: tuple[int, int], spread: int, crash_at: int
) -> None:
    topology = mw.Topology("hot")
    keyed = topology.source("hits", Hit).filter(lambda hit: hit.size != 5).key_by("page")
    windowed = keyed.window(windows.sliding(*map(mw.Duration, shape)))
    windowed.aggregate("once", agg.sum("size"), options={"late": "late-once"})
    windowed.aggregate("pages", agg.sum("size"), spread=spread, options={"late": "late-pages"})
    windowed.aggregate("rows", spread=spread, hits=agg.count(), most=agg.max("size"))
    harness = TopologyHarness(topology, split_at=["2"])
    for number, (page, at, amount, advances) in enumerate(hits):
        if number == crash_at:
            harness.crash()
        harness.send("hits", Hit(page, amount), timestamp=Timestamp(at))
        if advances:
            harness.advance(Timestamp(at))
    harness.finish()
    assert sorted(map(repr, harness.produced("pages"))) == sorted(map(repr, harness.produced("once")))
    late = [sorted(map(repr, harness.values(stream))) for stream in ("late-pages", "late-once")]
    assert late[0] == late[1]
    for page in ("a", "b|", "c"):
        assert harness.state("pages", page) is None
        assert all(harness.state("pages-partial", f"{shard}|{page}") is None for shard in range(spread))
    assert len({(one.page, one.start) for one in harness.values("rows")}) == len(harness.values("rows"))


hits_of = st.lists(
    st.tuples(
        st.sampled_from(["a", "b|"]),
        st.integers(-18, 8),
        st.integers(0, 9),
        st.sampled_from([0, 0, 1, 5]),
        st.booleans(),
    ),
    max_size=30,
)
"""Each record: its page, its time after the watermark and its size; how much the watermark rises, and whether there is
a crash."""


def assert_released(harness: TopologyHarness, step: str, spread: int) -> None:
    for page in ("a", "b|"):
        assert (harness.state(step, page), harness.timers(step, page)) == (None, {})
        shards = [f"{shard}|{page}" for shard in range(spread)]
        assert [harness.state(f"{step}-partial", shard) for shard in shards] == [None] * spread
        assert [harness.timers(f"{step}-partial", shard) for shard in shards] == [{}] * spread


@pytest.mark.guarantee("G14", section="8.4")
@given(
    hits=hits_of,
    shape=st.sampled_from([(10, 10), (7, 3)]),
    spread=st.integers(2, 5),
    kind=st.sampled_from(sorted(AGGREGATORS)),
    lateness=st.sampled_from([0, 4, 9]),
)
def test_late_records_correct_what_is_spread_as_what_is_not(
    hits: list[tuple[str, int, int, int, bool]], shape: tuple[int, int], spread: int, kind: str, lateness: int
) -> None:
    """Each result is the same, with its revision: a late record corrects it once."""
    topology, late = mw.Topology("hot"), mw.Duration(lateness)
    windowed = topology.source("hits", Hit).key_by("page").window(windows.sliding(*map(mw.Duration, shape)))
    for name, shards in (("once", 1), ("pages", spread)):
        windowed.aggregate(name, AGGREGATORS[kind](), allowed_lateness=late, too_late=f"{name}-lost", spread=shards)
    harness, watermark = TopologyHarness(topology, split_at=["2"]), 0
    harness.advance(Timestamp(0))
    for page, shift, size, rise, crashes in hits:
        harness.send("hits", Hit(page, size), Timestamp(watermark + shift))
        if crashes:
            harness.crash()
        watermark += rise
        harness.advance(Timestamp(watermark))
    harness.finish()
    found, expected = (sorted(map(repr, harness.produced(name))) for name in ("pages", "once"))
    assert found == expected
    assert harness.values("pages-lost") == harness.values("once-lost")
    assert_released(harness, "pages", spread)


PERIOD = 4


@pytest.mark.guarantee("G7", section="8.4")
@given(
    hits=hits_of,
    shape=st.sampled_from([(10, 10), (7, 3)]),
    lateness=st.sampled_from([0, 6]),
    clock=st.lists(st.sampled_from([0, 0, 1, 3, 2 * PERIOD]), min_size=30, max_size=30),
)
def test_early_results_of_what_is_spread_accumulate(
    hits: list[tuple[str, int, int, int, bool]], shape: tuple[int, int], lateness: int, clock: list[int]
) -> None:
    """Each has all records of the one before, and some more. None waits for more than two periods."""
    (size, every), topology = shape, mw.Topology("hot")
    windowed = (
        topology.source("hits", Hit).key_by("page").window(windows.sliding(mw.Duration(size), mw.Duration(every)))
    )
    early = windows.every(mw.Duration(PERIOD))
    windowed.aggregate("pages", agg.count(), spread=3, early=early, allowed_lateness=mw.Duration(lateness))
    harness, watermark = TopologyHarness(topology, split_at=["2"]), 0
    harness.advance(Timestamp(0))
    sent = dict[tuple[str, int], int]()
    for (page, shift, number, rise, crashes), passes in zip(hits, clock, strict=False):
        at = watermark + shift
        for start in (one for one in range(at - size + 1, at + 1) if one % every == 0):
            if watermark < start + size + lateness:
                sent[page, start] = sent.get((page, start), 0) + 1
        harness.send("hits", Hit(page, number), Timestamp(at))
        if crashes:
            harness.crash()
        harness.advance_clock(mw.Duration(passes))
        watermark += rise
        harness.advance(Timestamp(watermark))
        latest = {(one.key, one.start): one.value for one in harness.values("pages")}
        ended = {place: count for place, count in sent.items() if place[1] + size <= watermark}
        assert {place: latest.get(place) for place in ended} == ended
        if passes == 2 * PERIOD:
            assert latest == sent
    harness.finish()
    results = dict[tuple[str, int], list[windows.Result[int]]]()
    for one in harness.values("pages"):
        results.setdefault((one.key, one.start), []).append(one)
    assert {place: group[-1].value for place, group in results.items()} == sent
    for group in results.values():
        assert [one.revision for one in group] == [*range(len(group))]
        assert [one.value for one in group] == sorted(one.value for one in group)
    harness.advance_clock(mw.seconds(1))
    assert sum(map(len, results.values())) == len(harness.values("pages")), "no timer is left"
    assert_released(harness, "pages", 3)


@pytest.mark.guarantee("G1", section="8.4")
def test_a_part_is_merged_once() -> None:
    topology = mw.Topology("hits")
    windowed = topology.source("hits", Hit).key_by("page").window(windows.tumbling(mw.Duration(10)))
    kept: dict[str, Any] = {"early": windows.every(mw.Duration(PERIOD)), "allowed_lateness": mw.Duration(5)}
    windowed.aggregate("counts", agg.count(), spread=2, **kept)
    harness = TopologyHarness(topology)
    for stamp in (1, 2):  # equal values are in one shard
        harness.send("hits", Hit("a"), Timestamp(stamp))
        harness.advance_clock(mw.Duration(2 * PERIOD))
    harness.send("hits", Hit("a"), Timestamp(3))
    harness.advance(Timestamp(10))
    harness.send("hits", Hit("a"), Timestamp(4))
    assert [(one.value, one.revision) for one in harness.values("counts")] == [(1, 0), (2, 1), (3, 2), (4, 3)]
    harness.finish()
    assert len(harness.values("counts")) == 4


@pytest.mark.guarantee("G14", section="8.4")
def test_a_late_part_corrects_the_result() -> None:
    topology, lateness = mw.Topology("hits"), mw.Duration(5)
    windowed = topology.source("hits", Hit).key_by("page").window(windows.tumbling(mw.Duration(10)))
    windowed.aggregate("counts", agg.count(), spread=2, allowed_lateness=lateness, too_late="lost")
    harness = TopologyHarness(topology)
    for watermark in (9, 14, 15):
        harness.send("hits", Hit("a"), Timestamp(9))
        harness.advance(Timestamp(watermark + 1))
        assert harness.watermark("counts") == watermark + 1, "a window that is kept holds nothing"
    assert [(one.value, one.revision) for one in harness.values("counts")] == [(1, 0), (2, 1)]
    assert harness.values("lost") == [Hit("a")]


def test_options_of_what_is_spread_change_by_an_update() -> None:
    def counts(**options: Any) -> mw.Topology:
        topology = mw.Topology("hits")
        windowed = topology.source("hits", Hit).key_by("page").window(windows.tumbling(mw.Duration(10)))
        windowed.aggregate("counts", agg.count(), spread=2, **options)
        return topology

    harness = TopologyHarness(counts())
    forms: list[dict[str, Any]] = [{"early": windows.every(mw.Duration(PERIOD))}, {"allowed_lateness": 5}, {}]
    for size, options in enumerate(forms):
        harness.send("hits", Hit("a", size), Timestamp(1))
        harness.update(counts(**options))
    harness.send("hits", Hit("a", 3), Timestamp(2))
    harness.finish()
    assert [(one.value, one.revision) for one in harness.values("counts")] == [(4, 0)]
    harness.advance_clock(mw.seconds(1))
    assert len(harness.values("counts")) == 1
    assert harness.failures == []


@pytest.mark.guarantee("G1", section="4.1")
@pytest.mark.parametrize("windowing", [windows.tumbling(mw.Duration(10)), windows.session(mw.Duration(10))])
def test_no_update_begins_or_ends_to_spread_a_step(windowing: Any) -> None:
    """Regression: the end was allowed, and the records of open windows in the first phase were lost."""

    def counts(spread: int) -> mw.Topology:
        topology = mw.Topology("hits")
        topology.source("hits", Hit).key_by("page").window(windowing).aggregate("counts", agg.count(), spread=spread)
        return topology

    for before, after in ((1, 2), (2, 1)):
        harness = TopologyHarness(counts(before))
        with pytest.raises(mw.TopologyError, match="computation 'counts': spread= begins or ends"):
            harness.update(counts(after))


def test_what_cannot_be_spread_is_refused() -> None:
    keyed = mw.Topology("hot").source("hits", Hit).key_by("page")
    ten = mw.Duration(10)
    with pytest.raises(mw.UsageError, match="has a result after each record, so each would come to one machine"):
        keyed.window(windows.session(ten)).aggregate("pages", agg.count(), spread=4, early=windows.each_change())
    with pytest.raises(mw.UsageError, match="spread=0\\) takes a positive number of shards"):
        keyed.window(windows.tumbling(ten)).aggregate("pages", agg.count(), spread=0)
    with pytest.raises(mw.UsageError, match="its results and its too_late= in one stream 'pages'"):
        keyed.window(windows.tumbling(ten)).aggregate("pages", agg.count(), spread=2, too_late="pages")


@pytest.mark.guarantee("G14")
def test_the_first_phase_has_the_late_records() -> None:
    topology = mw.Topology("hot")
    keyed = topology.source("hits", Hit).key_by("page")
    keyed.window(windows.tumbling(mw.seconds(1))).aggregate("pages", agg.count(), spread=4, too_late="lost")
    harness = TopologyHarness(topology)
    now = Timestamp(1_700_000_000_000_000)
    harness.advance(now)
    harness.send("hits", Hit("a"), timestamp=Timestamp(now - 1))
    assert harness.values("lost") == [Hit("a")]


def test_dead_letters_of_both_phases_have_the_key_of_the_record() -> None:
    def refuse(total: int) -> int:
        raise ValueError(f"no {total}")

    def weigh(a: int, record: mw.Record[Hit]) -> int:
        return a + 100 // record.value.size

    topology = mw.Topology("hits")
    windowed = topology.source("hits", Hit).key_by("page").window(windows.tumbling(mw.Duration(10)))
    weights = agg.Aggregator(int, lambda: 0, weigh, lambda a, b: a + b, refuse, int)
    windowed.aggregate("weights", weights, spread=3, options={"on_failure": mw.dead_letter(after=1)})
    harness = TopologyHarness(topology)
    harness.send("hits", Hit("a", 0), timestamp=Timestamp(1))
    harness.send("hits", Hit("b", 1), timestamp=Timestamp(1))
    harness.advance(Timestamp(30))
    letters = [(letter.computation, letter.key) for letter in harness.values("dead-letters")]
    assert letters == [("weights-partial", "a"), ("weights", "b")]


def test_two_phases_are_done_at_the_end_of_the_window() -> None:
    """Regression: two phases needed one more microsecond than one phase.

    So results of a window came with the next report.
    """
    topology = mw.Topology("hits")
    windowed = topology.source("hits", Hit).key_by("page").window(windows.tumbling(mw.Duration(10)))
    windowed.aggregate("one", agg.sum("size"))
    windowed.aggregate("two", agg.sum("size"), spread=4)
    harness = TopologyHarness(topology)
    for size in (1, 2, 3):
        harness.send("hits", Hit("a", size), timestamp=Timestamp(9))
    harness.advance(Timestamp(9))
    assert (harness.values("one"), harness.values("two")) == ([], [])
    harness.advance(Timestamp(10))
    assert harness.values("two") == harness.values("one")
    assert [one.timestamp for one in harness.produced("two")] == [10]
    assert (harness.watermark("one"), harness.watermark("two")) == (10, 10)
