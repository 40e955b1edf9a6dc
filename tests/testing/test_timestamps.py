"""Times that only a wrong unit explains are refused, at injection and in hooks (section 4.5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millwheel as mw
from millwheel.model.units import NEWEST_USUAL_US, OLDEST_USUAL_US, wrong_unit
from millwheel.testing import TopologyHarness

NOW = mw.from_seconds(1_700_000_000)
FACTORS = {"s": 1_000_000, "ms": 1_000}
HOOKS: dict[str, Callable[[Any, Any], None]] = {
    "set_timer": lambda ctx, at: ctx.set_timer(at),
    "processing-time timer": lambda ctx, at: ctx.set_timer(at, domain=mw.TimeDomain.PROCESSING_TIME),
    "hold of a timer": lambda ctx, at: ctx.set_timer(NOW, hold=at),
    "set_hold": lambda ctx, at: ctx.set_hold(at),
    "produce": lambda ctx, at: ctx.produce("out", "text", timestamp=at),
}
WITH_BOOLS: dict[str, Callable[[Any, Any], None]] = {
    "set": lambda ctx, at: ctx.set_timer(at, domain=True),
    "cancel": lambda ctx, at: ctx.cancel_timer(domain=False),
}


class Hook(mw.Computation[str]):
    def __init__(self, act: Callable[[Any, Any], None], convert: Callable[[int], int]) -> None:
        self.act = act
        self.convert = convert

    def process_record(self, ctx: mw.Context[None], record: mw.Record[str]) -> None:
        self.act(ctx, self.convert(record.timestamp))

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        pass


def harness_of(act: str = "set_timer", convert: Callable[[int], int] = int, **options: Any) -> TopologyHarness:
    topology = mw.Topology("words")
    topology.source("words", str)
    topology.add(
        Hook({**HOOKS, **WITH_BOOLS}[act], convert), name="hook", inputs={"words": mw.key(str)}, outputs={"out": str}
    )
    return TopologyHarness(topology, **{"any_timestamp": False, **options})


@pytest.mark.paper(section="4.5")
@pytest.mark.parametrize("wrong", [1_700_000_000, 1_700_000_000_000, 1_700_000_000_000_000_000])
def test_the_harness_refuses_what_a_wrong_unit_explains(wrong: int) -> None:
    harness = harness_of()
    with pytest.raises(mw.UsageError, match=r"a record's timestamp of stream 'words'.*any_timestamp=True"):
        harness.send_all("words", [("a", NOW), ("b", mw.Timestamp(wrong))])
    assert harness.counts("hook")["records"] == 0
    with pytest.raises(mw.UsageError, match="the watermark of stream 'words'"):
        harness.advance(mw.Timestamp(wrong), "words")
    harness.finish()


@settings(max_examples=50)
@given(st.integers(OLDEST_USUAL_US, NEWEST_USUAL_US))
def test_the_harness_takes_microseconds_of_any_year(at: int) -> None:
    harness = harness_of()
    harness.send("words", "a", mw.Timestamp(at))
    harness.advance(mw.Timestamp(at))


@pytest.mark.parametrize("wrong", [1_700_000_000.5, "2023-11-14", None, True])
def test_the_harness_refuses_a_time_that_is_no_integer(wrong: Any) -> None:
    with pytest.raises(mw.UsageError, match=f"integer microseconds.*not {type(wrong).__name__}"):
        harness_of().send("words", "a", wrong)


def test_a_test_that_counts_from_zero_needs_no_option() -> None:
    harness_of().send("words", "a", mw.Timestamp(5))
    harness_of(now=mw.Timestamp(0)).send("words", "a", mw.Timestamp(1_700_000_000))
    harness_of(any_timestamp=True).send("words", "a", mw.Timestamp(1_700_000_000))


@pytest.mark.paper(section="4.5")
@pytest.mark.parametrize("act", HOOKS)
@pytest.mark.parametrize("unit", ["seconds", "milliseconds", "nanoseconds"])
def test_a_hook_that_states_another_unit_fails(act: str, unit: str) -> None:
    convert = {
        "seconds": lambda at: at // 1_000_000,
        "milliseconds": lambda at: at // 1_000,
        "nanoseconds": lambda at: at * 1_000,
    }[unit]
    with pytest.raises(mw.UsageError, match=rf" {unit} are .*: write millwheel\.from_{unit}\("):
        harness_of(act, convert).send("words", "a", NOW)


def test_a_failing_unit_passes_where_any_time_is_meant() -> None:
    harness_of("set_timer", lambda at: at // 1_000, any_timestamp=True).send("words", "a", NOW)


@pytest.mark.parametrize("at", [0, mw.MIN_TIMESTAMP, mw.MAX_TIMESTAMP, mw.MAX_TIMESTAMP - 1])
def test_a_hook_may_state_the_ends_of_time(at: int) -> None:
    harness_of("set_timer", lambda _: at).send("words", "a", NOW)
    harness_of("set_hold", lambda _: at).send("words", "a", NOW)


@settings(max_examples=200)
@given(st.integers(OLDEST_USUAL_US, 4 * OLDEST_USUAL_US), st.sampled_from(["s", "ms", "ns"]))
def test_every_time_of_these_days_is_known_in_every_unit(at: int, unit: str) -> None:
    read = at * 1_000 if unit == "ns" else at // FACTORS[unit]
    slack = 0 if unit == "ns" else FACTORS[unit]
    assert wrong_unit(read, NOW) == unit or at < OLDEST_USUAL_US + slack
    assert wrong_unit(at, NOW) == ""
    assert wrong_unit(read, 100) == ""


def test_a_stream_that_is_not_there_is_named() -> None:
    harness = harness_of()
    with pytest.raises(mw.UsageError, match=r"topology 'words' has no stream 'owt'; did you mean 'out'\?|'owt'"):
        harness.values("owt")
    assert harness.values("out") == harness.values("dead-letters") == []


@pytest.mark.paper(section="4.6")
@pytest.mark.parametrize("act", WITH_BOOLS)
def test_a_timers_domain_is_no_bool(act: str) -> None:
    with pytest.raises(mw.UsageError, match="a timer's domain is a TimeDomain, not bool"):
        harness_of(act).send("words", "a", NOW)
