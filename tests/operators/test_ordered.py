"""Hooks that get their records in order do what a loop over the sorted records does (G1, G6, G7)."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import agg
from millwheel.operators import ordered
from millwheel.operators.ordered_context import OrderedContext
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000


class Step(msgspec.Struct, frozen=True):
    key: int
    seq: int
    name: str
    alarm: int = 0
    """After how long the record's timer fires. 0: none. Negative: the timer of its name is cancelled."""


class Diary(mw.Computation[Step, list[str]]):
    """Produces each record and timer that it gets, with the number before it. Its timers set timers."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[Step]) -> None:
        step = record.value
        self.write(ctx, step.name, record.timestamp)
        if step.alarm > 0:
            ctx.set_timer(mw.Timestamp(record.timestamp + step.alarm), step.name)
        elif step.alarm < 0:
            ctx.cancel_timer(step.name)

    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        self.write(ctx, f"timer {timer.tag}", timer.timestamp)
        if len(timer.tag) < 2:
            ctx.set_timer(mw.Timestamp(timer.timestamp + 1), timer.tag * 2)
        if len(ctx.state) > 6:
            del ctx.state

    def write(self, ctx: mw.Context[list[str]], what: str, at: int) -> None:
        assert ctx.watermark == at
        ctx.state.append(what)
        ctx.produce("diary", f"{ctx.key}: {what} at {at - BEGIN}, {len(ctx.state)} in all")


class AsyncDiary(Diary):
    async def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[Step]) -> None:  # type: ignore[override]
        super().process_record(ctx, record)


def naive(key: int, steps: list[tuple[int, Step]]) -> Iterator[str]:
    """What Diary produces for a key, by a loop over all records and timers in their order."""
    rows = sorted((at, one.seq, msgspec.msgpack.encode(one), one) for at, one in steps if one.key == key)
    timers: list[tuple[int, str]] = []
    seen = 0
    while rows or timers:
        if timers and (not rows or timers[0][0] <= rows[0][0]):
            at, tag = heappop(timers)
            seen += 1
            yield f"{key}: timer {tag} at {at}, {seen} in all"
            if len(tag) < 2:
                timers = [one for one in timers if one[1] != tag * 2]
                timers.sort()
                heappush(timers, (at + 1, tag * 2))
            seen = 0 if seen > 6 else seen
            continue
        at, _, _, step = rows.pop(0)
        seen += 1
        yield f"{key}: {step.name} at {at}, {seen} in all"
        if step.alarm:
            timers = sorted(one for one in timers if one[1] != step.name)
        if step.alarm > 0:
            heappush(timers, (at + step.alarm, step.name))


steps_of = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.builds(Step, st.integers(1, 3), st.integers(0, 2), st.sampled_from("abc"), st.integers(-1, 4)),
    ),
    max_size=20,
)


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def run(topology: mw.Topology, steps: list[tuple[int, Step]], crash_at: int, lag: int | None) -> TopologyHarness:
    """Send the records in the given order. ``lag``: how far the watermark is behind, if it moves on the way."""
    harness = TopologyHarness(topology, split_at=["2"])
    for number, (time, step) in enumerate(steps):
        if number == crash_at:
            harness.crash()
        harness.send("steps", step, timestamp=at(time))
        if lag is not None:  # nothing is late
            harness.advance(at(min([time - lag, *(later for later, _ in steps[number + 1 :])])))
    harness.advance(at(1_000))
    return harness


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("kind", [Diary, AsyncDiary])
@given(
    steps=steps_of,
    crash_at=st.integers(0, 20),
    lag=st.none() | st.integers(0, 4),
    most=st.sampled_from([1, 3, 1_000]),
)
def test_ordered_hooks_are_a_loop_over_sorted_records(
    kind: type[Diary], steps: list[tuple[int, Step]], crash_at: int, lag: int | None, most: int
) -> None:
    topology = mw.Topology("diaries")
    topology.source("steps", Step).key_by("key").ordered_by_time("seq").process("diary", kind, {"diary": str})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "MAX_STEPS", most)
        harness = run(topology, steps, crash_at, lag)
    for one in harness.produced("diary"):
        assert f" at {one.timestamp - BEGIN}, " in one.value
    for key in (1, 2, 3):
        found = [one for one in harness.values("diary") if one.startswith(f"{key}:")]
        assert found == list(naive(key, steps))
        assert harness.timers("diary", key) == {}
        state = harness.state("diary", key)
        assert state is None or (state.waiting, state.timers) == ([], {})
    harness.close()


@pytest.mark.guarantee("G1")
@given(steps=steps_of, crash_at=st.integers(0, 20), lag=st.none() | st.integers(0, 4))
def test_ordered_updates_do_not_depend_on_arrival(
    steps: list[tuple[int, Step]], crash_at: int, lag: int | None
) -> None:
    topology = mw.Topology("diaries")
    keyed = topology.source("steps", Step).key_by("key").ordered_by_time(lambda step: step.seq)
    keyed.update("paths", "", lambda path, one: (path + one.name, [f"{one.key}: {path + one.name}"]), str)
    keyed.aggregate("counts", count=agg.count(), names=agg.distinct("name"))
    harness = run(topology, steps, crash_at, lag)
    for key in (1, 2, 3):
        rows = sorted((time, one.seq, msgspec.msgpack.encode(one), one) for time, one in steps if one.key == key)
        names = [one.name for *_, one in rows]
        paths = [f"{key}: {''.join(names[: end + 1])}" for end in range(len(names))]
        assert [one for one in harness.values("paths") if one.startswith(f"{key}:")] == paths
        counts = [(end + 1, sorted(set(names[: end + 1]))) for end in range(len(names))]
        assert [(one.count, one.names) for one in harness.values("counts") if one.key == key] == counts


@pytest.mark.guarantee("G15")
@given(steps=steps_of, crash_at=st.integers(0, 20), lag=st.none() | st.integers(0, 4))
def test_the_order_stays_on_the_way_to_the_same_key(
    steps: list[tuple[int, Step]], crash_at: int, lag: int | None
) -> None:
    topology = mw.Topology("diaries")
    keyed = topology.source("steps", Step).key_by("key").ordered_by_time("seq")
    passed = keyed.update("passed", 0, lambda _, one: (None, [one]), Step)
    passed.key_by("key").update("paths", "", lambda path, one: (path + one.name, [f"{one.key}{path}{one.name}"]), str)
    harness = run(topology, steps, crash_at, lag)
    for key in (1, 2, 3):
        rows = sorted((time, one.seq, msgspec.msgpack.encode(one), one) for time, one in steps if one.key == key)
        path = "".join(one.name for *_, one in rows)
        found = [one for one in harness.values("paths") if one.startswith(str(key))]
        assert found == [f"{key}{path[: end + 1]}" for end in range(len(path))]


@pytest.mark.guarantee("G13")
def test_what_waits_is_bounded_and_released() -> None:
    topology = mw.Topology("diaries")
    keyed = topology.source("steps", Step).key_by("key").ordered_by_time(limit=2)
    keyed.update("names", 0, lambda count, step: (None, [step.name]), str)
    harness = TopologyHarness(topology)
    harness.send("steps", Step(1, 0, "b"), timestamp=at(2))
    harness.send("steps", Step(1, 0, "a"), timestamp=at(1))
    with pytest.raises(ValueError, match="2 records of the key wait for the low watermark, which is the limit"):
        harness.send("steps", Step(1, 0, "c"), timestamp=at(3))
    harness.advance(at(3))
    harness.advance_clock(mw.seconds(1))  # the next attempt
    harness.finish()
    assert harness.values("names") == ["a", "b", "c"]
    assert harness.state("names", 1) is None


@pytest.mark.guarantee("G14")
def test_late_records_are_dropped_passed_or_diverted() -> None:
    topology = mw.Topology("diaries")
    keyed = topology.source("steps", Step).key_by("key").ordered_by_time()

    def write(seen: str, step: Step) -> tuple[str, list[str]]:
        return seen + step.name, [seen + step.name]

    keyed.update("dropped", "", write, str)
    keyed.update("passed", "", write, str, late=mw.Late.PROCESS)
    harness = TopologyHarness(topology)
    harness.send("steps", Step(1, 0, "d"), timestamp=at(4))
    harness.send("steps", Step(1, 0, "b"), timestamp=at(2))
    harness.advance(at(3))
    harness.send("steps", Step(1, 0, "a"), timestamp=at(1))
    harness.send("steps", Step(1, 0, "c"), timestamp=at(3))  # as old as the watermark: in time
    harness.advance(at(9))
    assert harness.values("dropped") == ["b", "bc", "bcd"]
    assert harness.values("passed") == ["b", "ba", "bac", "bacd"]
    assert [one.timestamp - BEGIN for one in harness.produced("passed")] == [2, 1, 3, 4]


class Echo(mw.Computation[Step]):
    """Sets a timer for a time before each record, perhaps with a hold that comes too late."""

    def __init__(self, holds: bool = False) -> None:
        self.holds = holds

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Step]) -> None:
        hold = mw.Timestamp(record.timestamp - 3) if self.holds else None
        ctx.set_timer(mw.Timestamp(record.timestamp - 2), record.value.name, hold=hold)

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        ctx.produce("echoes", timer.tag)


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize(("together", "holds"), [(False, False), (True, False), (False, True)])
def test_a_timer_of_a_late_record_is_as_late_as_it(together: bool, holds: bool) -> None:
    def echoes(ordered_: bool) -> list[tuple[str, int]]:
        topology = mw.Topology("echoes")
        keyed = topology.source("steps", Step).key_by("key")
        step = keyed.ordered_by_time() if ordered_ else keyed
        step.process("echo", Echo(holds), {"echoes": str}, late=mw.Late.PROCESS)
        harness = TopologyHarness(topology)
        harness.advance(at(10))
        late = [(Step(1, 0, "late"), at(5)), (Step(1, 0, "later"), at(6))]
        harness.send_all("steps", late[: 2 if together else 1])
        harness.send_all("steps", late[2 if together else 1 :])
        harness.advance(at(20))
        return [(one.value, one.timestamp - BEGIN) for one in harness.produced("echoes")]

    assert echoes(True) == echoes(False)


def test_a_timer_in_the_past_is_as_late_as_its_setter() -> None:
    topology = mw.Topology("echoes")
    topology.source("steps", Step).key_by("key").ordered_by_time().process("echo", Echo, {"echoes": str})
    harness = TopologyHarness(topology)
    for time, name in [(12, "b"), (11, "a")]:
        harness.send("steps", Step(1, 0, name), timestamp=at(time))
    harness.advance(at(20))
    assert [(one.value, one.timestamp - BEGIN) for one in harness.produced("echoes")] == [("a", 11), ("b", 12)]


class Patient(mw.Computation[Step]):
    """Says when a key has been silent for a second of the wall clock."""

    def process_record(self, ctx: mw.Context[None], record: mw.Record[Step]) -> None:
        ctx.set_timer(mw.Timestamp(ctx.now + mw.seconds(1)), domain=mw.TimeDomain.PROCESSING_TIME)
        if record.value.name == "end":
            ctx.cancel_timer(domain=mw.TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: mw.Context[None], timer: mw.Timer) -> None:
        ctx.produce("silences", ctx.key)


@pytest.mark.guarantee("G6")
def test_timers_of_the_wall_clock_are_the_hooks_own() -> None:
    topology = mw.Topology("silences")
    topology.source("steps", Step).key_by("key").ordered_by_time().process("patient", Patient, {"silences": str})
    harness = TopologyHarness(topology)
    harness.send("steps", Step(1, 0, "a"), timestamp=at(1))
    harness.send("steps", Step(2, 0, "b"), timestamp=at(1))
    harness.send("steps", Step(2, 0, "end"), timestamp=at(2))
    harness.send("steps", Step(3, 0, "c"), timestamp=at(50))
    harness.advance_clock(mw.seconds(5))
    assert harness.values("silences") == []
    harness.advance(at(10))
    harness.crash()
    assert harness.watermark("patient") == at(1), "the timer holds it"
    harness.advance_clock(mw.seconds(1))
    assert harness.values("silences") == ["1"]
    assert harness.watermark("patient") == at(10)


class Old(mw.Computation[Step, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Step]) -> None:
        ctx.state += 1


class New(mw.Computation[Step, list[int]]):
    state_version = 2

    def migrate(self, stored: mw.StoredState) -> list[int]:
        return [stored.read(int)]

    def process_record(self, ctx: mw.Context[list[int]], record: mw.Record[Step]) -> None:
        ctx.state.append(record.value.seq)
        ctx.produce("lists", ctx.state)


def test_a_new_version_of_the_state_keeps_what_waits() -> None:
    before, after = mw.Topology("counts"), mw.Topology("counts")
    before.source("steps", Step).key_by("key").ordered_by_time().process("count", Old, {"lists": list[int]})
    after.source("steps", Step).key_by("key").ordered_by_time().process("count", New, {"lists": list[int]})
    harness = TopologyHarness(before)
    harness.send("steps", Step(1, 7, "a"), timestamp=at(1))
    harness.send("steps", Step(1, 9, "c"), timestamp=at(5))
    harness.send("steps", Step(2, 5, "d"), timestamp=at(5))
    harness.advance(at(3))
    harness.update(after)
    harness.send("steps", Step(1, 8, "b"), timestamp=at(4))
    harness.advance(at(10))
    assert sorted(harness.values("lists")) == [[1, 8], [1, 8, 9], [5]]


class Opaque(mw.Computation[Step, int]):
    state_codec = mw.Codec(lambda state: str(state).encode(), int, int)

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Step]) -> None: ...


class Untyped(mw.Computation):  # type: ignore[type-arg]
    def process_record(self, ctx: mw.Context[Any], record: mw.Record[Any]) -> None: ...


class Timeless(mw.Computation[Step, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Step]) -> None:
        if record.value.name == "timer":
            ctx.set_timer(record.timestamp)
        ctx.state = None  # type: ignore[assignment]


def test_what_cannot_be_ordered_is_refused() -> None:
    topology = mw.Topology("diaries")
    keyed = topology.source("steps", Step).key_by("key")
    with pytest.raises(mw.UsageError, match="Opaque has a state_codec of its own"):
        keyed.ordered_by_time().process("diary", Opaque, {})
    with pytest.raises(mw.UsageError, match="Untyped does not state its types"):
        keyed.ordered_by_time().process("diary", Untyped, {})
    with pytest.raises(mw.UsageError, match="takes a positive limit, not 0"):
        keyed.ordered_by_time(limit=0).process("diary", Diary, {"diary": str})
    with pytest.raises(mw.UsageError, match="a dead letter would be the timer that passes them"):
        keyed.ordered_by_time().process("diary", Diary, {"diary": str}, on_failure=mw.dead_letter())
    keyed.ordered_by_time().process("timeless", Timeless, {})
    harness = TopologyHarness(topology)
    harness.send("steps", Step(1, 0, "timer"), timestamp=at(1))
    with pytest.raises(mw.UsageError, match="Timeless sets a timer, and has no process_timer"):
        harness.advance(at(2))
    harness.send("steps", Step(2, 0, "none"), timestamp=at(3))
    with pytest.raises(mw.UsageError, match="the state is None, which is not of its type"):
        harness.advance(at(4))


class Account(mw.GrowingState):
    seen: mw.ListState[str]


class Keeper(mw.Computation[str, Account]):
    def process_record(self, ctx: mw.Context[Account], record: mw.Record[str]) -> None:
        ctx.state.seen.append(record.value)


def test_ordered_input_of_a_growing_state_is_refused() -> None:
    words = mw.Topology("words").source("words", str).key_by(mw.everything)
    with pytest.raises(mw.UsageError, match="Keeper has a growing state"):
        words.ordered_by_time().process("keeper", Keeper, {})


class Dropping(mw.Computation[int, None]):
    def process_record(self, ctx: mw.Context[None], record: mw.Record[int]) -> None:
        ctx.count_dropped()


def test_hooks_in_order_have_all_that_a_context_has() -> None:
    assert [name for name in dir(mw.Context) if name[0] != "_" and not hasattr(OrderedContext, name)] == []
    topology = mw.Topology("t")
    topology.source("values", int).key_by(mw.everything).ordered_by_time().process("dropping", Dropping, {})
    harness = TopologyHarness(topology)
    harness.send("values", 1, timestamp=mw.Timestamp(1_700_000_000_000_000))
    harness.finish()
    assert harness.counts("dropping")["dropped"] == 1
