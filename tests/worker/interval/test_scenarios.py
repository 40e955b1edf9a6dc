"""Whole topologies on the interval cores, in virtual time: the guarantees that a user sees."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

import millwheel as mw
from millwheel.model.time import MAX_TIMESTAMP, Timestamp, seconds
from millwheel.testing.harness import TopologyHarness


@dataclass
class Query:
    text: str
    place: str = ""


@dataclass
class WindowCount:
    text: str
    count: int


@dataclass
class Counts:
    by_end: dict[int, int] = field(default_factory=dict)


SECOND = 1_000_000


class WindowCounter(mw.Computation[Query, Counts]):
    def process_record(self, ctx: mw.Context[Counts], record: mw.Record[Query]) -> None:
        end = record.timestamp - record.timestamp % SECOND + SECOND
        ctx.state.by_end[end] = ctx.state.by_end.get(end, 0) + 1
        ctx.set_timer(Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[Counts], timer: mw.Timer) -> None:
        ctx.produce("windows", WindowCount(ctx.key, ctx.state.by_end.pop(int(timer.tag))))


class Total(mw.Computation[WindowCount, dict[str, int]]):
    def process_record(self, ctx: mw.Context[dict[str, int]], record: mw.Record[WindowCount]) -> None:
        ctx.state["total"] = ctx.state.get("total", 0) + record.value.count
        ctx.produce("totals", (ctx.key, ctx.state["total"]))


def counting(**options: Any) -> mw.Topology:
    topology = mw.Topology("counting")
    topology.source("queries", Query)
    topology.add(WindowCounter, inputs={"queries": mw.key("text")}, outputs={"windows": WindowCount}, **options)
    topology.add(Total, inputs={"windows": mw.key("text")}, outputs={"totals": tuple[str, int]}, **options)
    return topology


def at(second: float) -> Timestamp:
    return Timestamp(round(second * SECOND))


@pytest.mark.guarantee("G6", section="4.6")
@pytest.mark.parametrize("options", [{}, {"strong": False}, {"strong": False, "exactly_once": False}])
@pytest.mark.parametrize("cuts", [(), ("b", "c")])
def test_a_window_is_produced_once_after_the_watermark_passes_it(
    options: dict[str, bool], cuts: tuple[str, ...]
) -> None:
    harness = TopologyHarness(counting(**options), split_at=cuts)
    for text, second in [("a", 0.1), ("b", 0.2), ("a", 0.9), ("c", 1.5), ("a", 1.1)]:
        harness.send("queries", Query(text), at(second))
    assert harness.values("windows") == []
    harness.advance(at(0.999999))
    assert harness.values("windows") == []
    harness.advance(at(1))
    assert sorted((w.text, w.count) for w in harness.values("windows")) == [("a", 2), ("b", 1)]
    harness.finish()
    assert Counter((w.text, w.count) for w in harness.values("windows")) == Counter(
        [("a", 2), ("b", 1), ("a", 1), ("c", 1)]
    )
    assert sorted(harness.values("totals")) == [("a", 2), ("a", 3), ("b", 1), ("c", 1)]
    assert harness.watermark("window-counter") == harness.watermark("total") == MAX_TIMESTAMP


@pytest.mark.guarantee("G12", section="6.2")
@pytest.mark.parametrize("options", [{}, {"strong": False}])
def test_a_crash_after_any_step_changes_nothing(options: dict[str, bool]) -> None:
    steps = [("a", 0.1), ("b", 0.2), ("a", 0.9), ("c", 1.5), ("a", 1.1), ("b", 2.5)]
    harness = TopologyHarness(counting(**options))
    for text, second in steps:
        harness.send("queries", Query(text), at(second))
        harness.crash()
        harness.advance(at(second - 0.5))
        harness.crash()
    harness.finish()
    harness.crash()
    assert Counter((w.text, w.count) for w in harness.values("windows")) == Counter(
        [("a", 2), ("b", 1), ("a", 1), ("c", 1), ("b", 1)]
    )
    assert sorted(harness.values("totals")) == [("a", 2), ("a", 3), ("b", 1), ("b", 2), ("c", 1)]


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_record_sent_twice_counts_once() -> None:
    harness = TopologyHarness(counting())
    for _ in range(3):
        harness.send("queries", Query("a"), at(0.5), record_id=b"0123456789abcdef")
        harness.crash()
    harness.finish()
    assert harness.values("windows") == [WindowCount("a", 1)]


@pytest.mark.paper(section="6.1.1")
def test_duplicates_are_counted_with_and_without_a_commit() -> None:
    harness = TopologyHarness(counting())
    known, fresh = b"0123456789abcdef", b"fedcba9876543210"
    harness.send("queries", Query("a"), at(0.5), record_id=known)
    harness.send("queries", Query("a"), at(0.5), record_id=known)
    assert harness.counts("window-counter")["duplicates"] == 1
    both = [(Query("a"), at(0.5)), (Query("b"), at(0.5))]
    harness.send_all("queries", both, record_ids=[known, fresh])
    assert harness.counts("window-counter") == {
        "records": 2,
        "duplicates": 2,
        "late": 0,
        "dead_letters": 0,
        "dropped": 0,
    }


class Failing(mw.Computation[Query, Counts]):
    """Raises for the text "bad", after it has changed everything that it can."""

    def process_record(self, ctx: mw.Context[Counts], record: mw.Record[Query]) -> None:
        ctx.state.by_end[0] = ctx.state.by_end.get(0, 0) + 1
        ctx.set_timer(Timestamp(record.timestamp + 1), "t")
        ctx.produce("out", (record.value.text, ctx.state.by_end[0]))
        if record.value.text.startswith("bad"):
            raise ValueError("I do not like it")

    def process_timer(self, ctx: mw.Context[Counts], timer: mw.Timer) -> None:
        ctx.produce("out", ("timer", timer.timestamp))


def failing(policy: mw.FailurePolicy) -> TopologyHarness:
    topology = mw.Topology("failing")
    topology.source("queries", Query)
    topology.add(Failing, inputs={"queries": mw.key("place")}, outputs={"out": tuple[str, int]}, on_failure=policy)
    return TopologyHarness(topology)


@pytest.mark.guarantee("G2", section="6.1.2")
def test_a_raising_hook_leaves_only_a_dead_letter_with_its_id() -> None:
    harness = failing(mw.dead_letter(after=2, initial=seconds(1)))
    harness.send("queries", Query("good", "x"), at(1))
    harness.send("queries", Query("bad", "x"), at(2))
    harness.send("queries", Query("good", "y"), at(3))
    harness.send("queries", Query("late", "x"), at(4))
    assert harness.values("out") == [("good", 1), ("good", 1)], "other keys go on, the failed one waits"
    assert harness.timers("failing", "x") == {("t", mw.TimeDomain.EVENT_TIME): at(1) + 1}
    harness.advance_clock(seconds(2))
    assert harness.values("out") == [("good", 1), ("good", 1), ("late", 2)]
    (letter,) = harness.values("dead-letters")
    assert (letter.computation, letter.key, letter.stream, letter.attempts) == ("failing", "x", "queries", 2)
    assert "I do not like it" in letter.error
    assert harness.counts("failing")["dead_letters"] == 1
    assert harness.state("failing", "x").by_end == {0: 2}
    harness.crash()
    harness.finish()
    assert len(harness.values("dead-letters")) == 1
    assert "computation 'failing', key 'x', record of stream 'queries'" in harness.failures[0]


@pytest.mark.guarantee("G8", section="4.5")
def test_a_failing_record_holds_the_watermark_until_settled() -> None:
    harness = failing(mw.retry(initial=seconds(1)))
    with pytest.raises(ValueError, match="I do not like it"):
        harness.send("queries", Query("bad", "x"), at(2))
    harness.advance(at(10))
    with pytest.raises(ValueError, match="I do not like it"):
        harness.advance_clock(seconds(20))
    assert harness.watermark("failing") <= at(2)
    assert len(harness.failures) >= 4
    with pytest.raises(ValueError, match="I do not like it"):
        harness.crash()
    assert harness.watermark("failing") <= at(2)


def test_stop_keeps_everything_unacknowledged() -> None:
    harness = failing(mw.stop(after=1))
    harness.send("queries", Query("good", "y"), at(1))
    harness.send("queries", Query("bad", "x"), at(2))
    assert "I do not like it" in harness.stopped("failing")
    harness.send("queries", Query("good", "y"), at(3))
    harness.finish()
    assert harness.values("out") == [("good", 1)]


class Asking(mw.Computation[Query, Counts]):
    async def process_record(self, ctx: mw.Context[Counts], record: mw.Record[Query]) -> None:
        import asyncio

        await asyncio.sleep(0)
        ctx.state.by_end[0] = ctx.state.by_end.get(0, 0) + 1
        ctx.produce("out", (record.value.text, ctx.state.by_end[0]))


@pytest.mark.guarantee("G5", section="4.1")
def test_asynchronous_hooks_keep_the_order_of_a_key() -> None:
    topology = mw.Topology("asking")
    topology.source("queries", Query)
    topology.add(Asking, inputs={"queries": mw.key("place")}, outputs={"out": tuple[str, int]})
    harness = TopologyHarness(topology)
    for number in range(5):
        harness.send("queries", Query(str(number), "x"), at(number))
    harness.finish()
    assert harness.values("out") == [(str(number), number + 1) for number in range(5)]
    harness.close()


class Wall(mw.Computation[Query, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[Query]) -> None:
        ctx.set_timer(Timestamp(ctx.now + seconds(10)), "ring", domain=mw.TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        ctx.produce("out", (timer.tag, ctx.now - timer.timestamp))


@pytest.mark.guarantee("G6", section="4.6")
def test_a_processing_timer_fires_by_the_clock_and_holds() -> None:
    topology = mw.Topology("wall")
    topology.source("queries", Query)
    topology.add(Wall, inputs={"queries": mw.key("place")}, outputs={"out": tuple[str, int]})
    harness = TopologyHarness(topology)
    harness.send("queries", Query("a", "x"), at(5))
    harness.advance(at(100))
    assert harness.watermark("wall") == at(5)
    harness.advance_clock(seconds(9))
    harness.crash()
    assert harness.values("out") == []
    harness.advance_clock(seconds(1))
    assert harness.values("out") == [("ring", 0)]
    assert harness.produced("out")[0].timestamp == at(100)
    assert harness.watermark("wall") == at(100)


@pytest.mark.guarantee("G14", section="4.5")
def test_late_records_are_flagged_or_dropped_or_diverted() -> None:
    class Flag(mw.Computation[Query, None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[Query]) -> None:
            ctx.produce("out", (record.value.text, int(record.late)))

    for late, expected, diverted in [
        (mw.Late.PROCESS, [("on time", 0), ("late", 1)], []),
        (mw.Late.DROP, [("on time", 0)], []),
        (mw.divert("late-queries"), [("on time", 0)], [Query("late", "x")]),
    ]:
        topology = mw.Topology("lateness")
        topology.source("queries", Query)
        topology.add(
            Flag,
            inputs={"queries": mw.key("place")},
            outputs={"out": tuple[str, int], "late-queries": Query},
            late=late,
        )
        harness = TopologyHarness(topology)
        harness.advance(at(5))
        harness.send("queries", Query("on time", "x"), at(5))
        harness.send("queries", Query("late", "x"), at(4.999999))
        assert harness.values("out") == expected
        assert harness.values("late-queries") == diverted
        assert harness.counts("flag")["late"] == 1


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("late", [mw.Late.DROP, mw.divert("late-queries")])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_record_behind_a_late_one_has_its_own_value(late: mw.Late, filtered: bool) -> None:
    class Pass(mw.Computation[Query, None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[Query]) -> None:
            ctx.produce("out", getattr(record.value, "text", "no query"))

    topology = mw.Topology("lateness")
    queries = topology.source("queries", Query)
    passed = queries.filter(lambda query: True) if filtered else queries
    passed.key_by("place").process("pass", Pass(), {"out": str, "late-queries": Query}, late=late)
    harness = TopologyHarness(topology)
    harness.advance(at(5))
    harness.send_all("queries", [(Query(text, "x"), at(time)) for text, time in (("a", 5), ("late", 4), ("b", 6))])
    assert harness.values("out") == ["a", "b"]
