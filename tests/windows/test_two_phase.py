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
