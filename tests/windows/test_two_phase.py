"""Aggregation in two phases equals aggregation in one (section 8.4)."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_what_cannot_be_spread_is_refused() -> None:
    keyed = mw.Topology("hot").source("hits", Hit).key_by("page")
    ten = mw.Duration(10)
    with pytest.raises(mw.UsageError, match="spread= takes a positive number, and tumbling or sliding windows"):
        keyed.window(windows.session(ten)).aggregate("pages", agg.count(), spread=4)
    with pytest.raises(mw.UsageError, match="without allowed_lateness"):
        keyed.window(windows.tumbling(ten)).aggregate("pages", agg.count(), spread=4, allowed_lateness=ten)
    with pytest.raises(mw.UsageError, match="spread= takes a positive number"):
        keyed.window(windows.tumbling(ten)).aggregate("pages", agg.count(), spread=0)


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
