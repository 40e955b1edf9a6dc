"""Nexmark's queries against DuckDB over the same events, with the events shuffled, a crash and splits (G1, G7)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import duckdb
import pytest

import millwheel as mw
from examples.nexmark.events import Bid, Event, generate
from examples.nexmark.queries import QUERIES, build
from millwheel.testing import TopologyHarness
from tests.examples.nexmark.answers import SIDE, answer, database_of, fill, rows_of

EVENTS = 2_500
PART = 100
SHORT_TIME, LONG_TIME = mw.milliseconds(25), mw.minutes(1)
OF_DAYS = ("q14", "q15", "q16", "q17")
Databases = dict[mw.Duration, tuple[list[Event], duckdb.DuckDBPyConnection]]
SHORT = ("q0", "q1", "q2", "q3", "q4", "q5", "q7", "q8", "q18", "q19", "q20")


@pytest.fixture(scope="module")
def databases() -> Iterator[Databases]:
    """The events, and a database with them, by the time between two."""
    with ExitStack() as stack:
        made: Databases = {}
        for every in (SHORT_TIME, LONG_TIME):
            events = list(generate(EVENTS, 4, every))
            made[every] = events, stack.enter_context(database_of(events))
        yield made


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_is_its_sql(name: str, databases: Databases) -> None:
    chance = Random(name)
    events, database = databases[LONG_TIME if name in OF_DAYS else SHORT_TIME]
    arrivals = []
    harness = TopologyHarness(build(name), split_at=["1020", "1060", "channel-5"])
    if name == "q13":
        harness.send_all("side", [(side, events[0].at) for side in SIDE])
    for begin in range(0, EVENTS, PART):
        part = events[begin : begin + PART]
        shuffled = chance.sample(part, PART)
        for first in range(0, PART, 10):
            harness.send_all("events", [(event, event.at) for event in shuffled[first : first + 10]])
        arrivals += [(event.bidder, int(harness.now)) for event in part if isinstance(event, Bid)]
        if begin in (700, 1_500):
            harness.crash()
        harness.advance(part[-1].at)
        harness.advance_clock(mw.seconds(3))
    harness.advance_clock(mw.seconds(30))
    harness.finish()
    if name == "q12":
        fill(database, "Arrival", ["bidder", "clock"], arrivals)
    expected = answer(database, name)
    assert len(expected) > 1
    assert rows_of(name, [(one.value, one.timestamp) for one in harness.produced(name)]) == expected


@pytest.mark.parametrize("name", SHORT)
def test_a_query_takes_six_lines_and_no_helper(name: str) -> None:
    body = inspect.getsource(QUERIES[name]).split('"""')[2].strip()
    assert len(body.splitlines()) <= 6
    assert not re.search(r"\b_\w", body), "a function of the module"


def test_events_have_the_published_shares() -> None:
    events = list(generate(5_000, 3, mw.milliseconds(1)))
    bids = [event for event in events if isinstance(event, Bid)]
    assert len(bids) == 4_600
    hot = sum(bid.channel in ("Google", "Facebook", "Baidu", "Apple") for bid in bids)
    assert 0.45 < hot / len(bids) < 0.55
    assert 95 < sum(32 + len(bid.extra) for bid in bids) / len(bids) < 105
    of_channel: dict[str, str] = {}
    assert all(of_channel.setdefault(bid.channel, bid.url) == bid.url for bid in bids)
