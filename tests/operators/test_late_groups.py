"""Late records of window joins and groups: they produce what was missing, and nothing twice (G1, G14)."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel import windows
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
SIZE = 6
SIDES = ("orders", "payments")
Outer = Literal["", "left", "right", "both"]


class Event(msgspec.Struct, frozen=True):
    key: int
    number: int


class Sent(NamedTuple):
    at: int
    side: str
    event: Event
    watermark: int
    """The watermark when it was sent."""


Shift = tuple[int, str, int, int, bool]
shifts_of = st.lists(
    st.tuples(
        st.integers(-14, 5), st.sampled_from(SIDES), st.integers(0, 1), st.sampled_from([0, 0, 0, 1, 4]), st.booleans()
    ),
    max_size=16,
)
"""Each record: its time after the watermark, side and key; how much the watermark rises; whether there is a crash."""


def timestamp(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def play(topology: mw.Topology, shifts: list[Shift]) -> tuple[TopologyHarness, list[Sent]]:
    harness, watermark, sent = TopologyHarness(topology, split_at=["1"]), 0, list[Sent]()
    harness.advance(timestamp(0))
    for number, (shift, side, key, rise, crashes) in enumerate(shifts):
        sent.append(Sent(watermark + shift, side, Event(key, number), watermark))
        harness.send(side, sent[-1].event, timestamp(sent[-1].at))
        if crashes:
            harness.crash()
        watermark += rise
        harness.advance(timestamp(watermark))
    harness.finish()
    return harness, sent


def by_window(sent: list[Sent], every: int, lateness: int) -> tuple[dict[tuple[int, int], list[Sent]], list[Event]]:
    """The records of each window's end and key which the window gets, and those that no window gets."""
    groups, lost = defaultdict[tuple[int, int], list[Sent]](list), list[Event]()
    for one in sent:
        ends = [end for end in range(one.at + 1, one.at + SIZE + 1) if (BEGIN + end - SIZE) % every == 0]
        kept = [end for end in ends if one.watermark < end + lateness]
        for end in kept:
            groups[end, one.event.key].append(one)
        if not kept:
            lost.append(one.event)
    return groups, lost


def windowed(topology: mw.Topology, every: int) -> tuple[Any, Any]:
    left, right = (topology.source(side, Event).key_by("key") for side in SIDES)
    return left.window(windows.sliding(mw.Duration(SIZE), mw.Duration(every))), right


def assert_released(harness: TopologyHarness, sent: list[Sent], lost: list[Event]) -> None:
    assert harness.values("lost") == lost
    for key in range(2):
        assert (harness.state("out", key), harness.timers("out", key)) == (None, {}), "nothing is left behind"


def pair(left: Event | None, right: Event | None) -> list[int]:
    return [-1 if one is None else one.number for one in (left, right)]


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize("outer", ["", "left", "right", "both"])
@given(shifts=shifts_of, every=st.sampled_from([SIZE, 4]), lateness=st.sampled_from([0, 3, 9]))
def test_a_late_record_makes_the_pairs_that_were_missing(
    outer: Outer, shifts: list[Shift], every: int, lateness: int
) -> None:
    topology = mw.Topology("shop")
    left, right = windowed(topology, every)
    left.join("out", right, pair, list[int], outer=outer, allowed_lateness=mw.Duration(lateness), too_late="lost")
    harness, sent = play(topology, shifts)
    groups, lost = by_window(sent, every, lateness)
    expected = []
    for (end, _), group in groups.items():
        one, other = ([each.event for each in group if each.side == side] for side in SIDES)
        expected += [(end, pair(a, b)) for a in one for b in other]
        if outer in ("left", "both") and not other:
            expected += [(end, pair(a, None)) for a in one]
        if outer in ("right", "both") and not one:
            expected += [(end, pair(None, b)) for b in other]
    found = [(each.timestamp - BEGIN, each.value) for each in harness.produced("out")]
    assert sorted(found) == sorted(expected)
    assert_released(harness, sent, lost)


def summary(*groups: list[Event]) -> list[str]:
    """The number of records of each side, and one result for each even number."""
    counts = [f"{side}: {len(group)}" for side, group in zip(SIDES, groups, strict=True)]
    return [*counts, *(str(event.number) for group in groups for event in group if event.number % 2 == 0)]


@pytest.mark.guarantee("G14", section="4.5")
@given(shifts=shifts_of, every=st.sampled_from([SIZE, 4]), lateness=st.sampled_from([0, 3, 9]))
def test_a_late_record_adds_the_results_of_its_group(shifts: list[Shift], every: int, lateness: int) -> None:
    topology = mw.Topology("shop")
    left, right = windowed(topology, every)
    left.cogroup("out", right, summary, str, allowed_lateness=mw.Duration(lateness), too_late="lost")
    harness, sent = play(topology, shifts)
    groups, lost = by_window(sent, every, lateness)
    expected = Counter[tuple[int, str]]()
    for (end, _), group in groups.items():
        in_time = sum(one.watermark < end for one in group)
        results = [Counter[str]()]
        for size in range(in_time or 1, len(group) + 1):
            lists = [[one.event for one in group[:size] if one.side == side] for side in SIDES]
            results.append(Counter(summary(*lists)))
            expected.update((end, one) for one in (results[-1] - results[-2]).elements())
    assert Counter((one.timestamp - BEGIN, one.value) for one in harness.produced("out")) == expected
    assert_released(harness, sent, lost)


def joined(**options: Any) -> TopologyHarness:
    topology = mw.Topology("shop")
    left, right = windowed(topology, SIZE)
    left.join("out", right, pair, list[int], allowed_lateness=mw.Duration(4), **options)

    class Reader(mw.Computation[list[int], None]):
        def process_record(self, ctx: mw.Context[None], record: mw.Record[list[int]]) -> None:
            ctx.produce("read", (record.late, record.value))

    topology.add(Reader(), name="reader", inputs={"out": mw.key(str)}, outputs={"read": tuple[bool, list[int]]})
    return TopologyHarness(topology)


END = (BEGIN // SIZE + 1) * SIZE


@pytest.mark.guarantee("G7", section="4.6")
def test_what_may_find_a_late_partner_holds_the_watermark() -> None:
    harness = joined(outer="left")
    harness.send("orders", Event(1, 1), mw.Timestamp(END - 1))
    harness.advance(mw.Timestamp(END + 3))
    assert harness.watermark("reader") == END
    harness.advance(mw.Timestamp(END + 4))
    assert harness.values("read") == [(False, [1, -1])]
    assert harness.watermark("reader") == END + 4


@pytest.mark.guarantee("G8", section="4.6")
def test_a_late_partner_releases_the_watermark() -> None:
    harness = joined(outer="left")
    harness.send("orders", Event(1, 1), mw.Timestamp(END - 1))
    harness.advance(mw.Timestamp(END + 3))
    harness.send("payments", Event(1, 2), mw.Timestamp(END - 2))
    assert harness.values("read") == [(False, [1, 2])]
    assert harness.watermark("reader") == END + 3
    harness.send("payments", Event(1, 3), mw.Timestamp(END - 2))
    assert harness.values("read")[1:] == [(True, [1, 3])]
    harness.finish()
    assert len(harness.values("out")) == 2


@pytest.mark.guarantee("G1", section="4.5")
def test_a_group_produces_nothing_twice() -> None:
    topology = mw.Topology("shop")
    left, right = windowed(topology, SIZE)
    left.cogroup("out", right, summary, str, allowed_lateness=mw.Duration(4))
    harness = TopologyHarness(topology)
    harness.send("orders", Event(1, 2), mw.Timestamp(END - 1))
    harness.advance(mw.Timestamp(END))
    assert harness.values("out") == ["orders: 1", "payments: 0", "2"]
    harness.send("orders", Event(1, 4), mw.Timestamp(END - 1))
    assert harness.values("out")[3:] == ["orders: 2", "4"]
    harness.advance(mw.Timestamp(END + 4))
    harness.send("orders", Event(1, 6), mw.Timestamp(END - 1))
    assert (len(harness.values("out")), harness.counts("out")["dropped"]) == (5, 1)


def taken_out(*groups: list[Event]) -> list[int]:
    found = []
    for group in groups:
        while group:
            found.append(group.pop().number)
    return [sum(found)]


@pytest.mark.guarantee("G1", section="4.5")
@pytest.mark.parametrize("orders", [1, 2])
def test_a_group_keeps_what_its_function_takes_out(orders: int) -> None:
    """Regression: a list of one record was that of the state, and its record was lost for late ones."""
    topology = mw.Topology("shop")
    left, right = windowed(topology, SIZE)
    left.cogroup("out", right, taken_out, int, allowed_lateness=mw.Duration(4))
    harness = TopologyHarness(topology)
    for _ in range(orders):
        harness.send("orders", Event(1, 1), mw.Timestamp(END - 1))
    harness.advance(mw.Timestamp(END))
    harness.send("payments", Event(1, 10), mw.Timestamp(END - 1))
    harness.send("payments", Event(1, 10), mw.Timestamp(END - 1))
    assert harness.values("out") == [orders, orders + 10, orders + 20]


@pytest.mark.guarantee("G1", section="4.5")
def test_a_join_that_was_given_up_has_its_pairs_later() -> None:
    fails = [True]

    def faulty(left: Event, right: Event) -> int:
        if fails[0]:
            raise ValueError("not now")
        return left.number + right.number

    topology = mw.Topology("shop")
    left, right = windowed(topology, SIZE)
    policy = mw.dead_letter(after=1)
    left.join("out", right, faulty, int, allowed_lateness=mw.Duration(4), on_failure=policy)
    harness = TopologyHarness(topology)
    for key in (1, 2):
        for side, number in (("orders", 1), ("payments", 2)):
            harness.send(side, Event(key, number), mw.Timestamp(END - 1))
    harness.advance(mw.Timestamp(END))
    assert len(harness.values("dead-letters")) == 2
    fails[0] = False
    harness.send("payments", Event(1, 10), mw.Timestamp(END - 1))
    assert harness.values("out") == [3, 11]
    harness.finish()
    assert harness.values("out") == [3, 11]
    assert [harness.state("out", key) for key in (1, 2)] == [None, None]


def test_what_too_late_may_not_be() -> None:
    left, right = windowed(mw.Topology("shop"), SIZE)
    with pytest.raises(mw.UsageError, match="step 'out' and its too_late= have one name"):
        left.join("out", right, pair, list[int], too_late="out")
    with pytest.raises(mw.UsageError, match="allowed_lateness"):
        left.cogroup("out", right, summary, str, allowed_lateness=mw.Duration(-1))
