"""The join with a broadcast table, against loops over all records, through splits and crashes (G1, G7, G15)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.operators import broadcast
from millwheel.streams import KeyedStream
from millwheel.testing import TopologyHarness
from millwheel.testing.cluster import VirtualCluster

BEGIN = 1_700_000_000_000_000


class Payment(msgspec.Struct, frozen=True, tag=True):
    card: int
    number: int


class Rule(msgspec.Struct, frozen=True, tag=True):
    id: int
    most: int


class Checked(msgspec.Struct, frozen=True, order=True):
    number: int
    rules: list[tuple[str, int]]


def check(payment: Payment, table: Mapping[str, Rule]) -> Checked:
    return Checked(payment.number, sorted((key, rule.most) for key, rule in table.items()))


def removes(rule: Rule) -> bool:
    return rule.most == 0


Event = tuple[int, Payment | Rule]
events_of = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 2), st.booleans(), st.integers(0, 3)), max_size=14
).map(
    lambda given: [
        (at, Payment(key, number) if left else Rule(key, most)) for number, (at, key, left, most) in enumerate(given)
    ]
)
crashes = st.integers(0, 14)
SPLITS = ["1", "2"]
"""Bounds between the keys of three copies, so that each interval has one."""


def at(offset: int) -> mw.Timestamp:
    return mw.Timestamp(BEGIN + offset)


def bank() -> tuple[mw.Topology, mw.Stream[Payment], KeyedStream[Rule]]:
    topology = mw.Topology("bank")
    return topology, topology.source("payments", Payment), topology.source("rules", Rule).key_by("id")


def send(harness: TopologyHarness, time: int, event: Payment | Rule) -> None:
    harness.send("payments" if isinstance(event, Payment) else "rules", event, timestamp=at(time))


def run(topology: mw.Topology, events: list[Event], crash_at: int, lag: int | None) -> TopologyHarness:
    """Send the events in their order. ``lag``: how far the watermark is behind, if it moves on the way."""
    harness = TopologyHarness(topology, split_at=SPLITS)
    for number, (time, event) in enumerate(events):
        if number == crash_at:
            harness.crash()
        send(harness, time, event)
        if lag is not None:  # nothing is late
            harness.advance(at(min([time - lag, *(later for later, _ in events[number + 1 :])])))
    return harness


def checked(harness: TopologyHarness) -> list[tuple[Checked, int]]:
    return sorted((one.value, one.timestamp - BEGIN) for one in harness.produced("checked"))


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("by_card", [False, True])
@given(events=events_of, crash_at=crashes, lag=st.none() | st.integers(0, 4))
def test_a_record_meets_the_table_as_it_has_arrived(
    by_card: bool, events: list[Event], crash_at: int, lag: int | None
) -> None:
    topology, payments, rules = bank()
    left = payments.key_by("card") if by_card else payments
    left.join_broadcast("checked", rules, check, Checked, removes=removes, copies=3)
    harness = run(topology, events, crash_at, lag)
    table: dict[str, Rule] = {}
    expected = []
    for time, event in events:
        if isinstance(event, Payment):
            expected.append((check(event, table), time))
        elif event.most:
            table[str(event.id)] = event
        else:
            table.pop(str(event.id), None)
    assert checked(harness) == sorted(expected)
    for copy in range(3):
        assert (harness.state("checked", copy) or {}) == table
    kept = harness.state("checked-table", "") or {}
    assert {key: value for key, (_, value) in kept.items()} == table


def table_as_of(events: list[Event], time: int) -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    rules = [(at, msgspec.msgpack.encode(rule), rule) for at, rule in events if isinstance(rule, Rule)]
    for held, _, rule in sorted(rules, key=lambda one: one[:2]):
        if held <= time:
            table[str(rule.id)] = rule
    return {key: rule for key, rule in table.items() if rule.most}


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G7", section="4.5")
@given(events=events_of, crash_at=crashes, lag=st.none() | st.integers(0, 4))
def test_a_record_meets_the_table_of_its_time(events: list[Event], crash_at: int, lag: int | None) -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=True, removes=removes, copies=3)
    harness = run(topology, events, crash_at, lag)
    harness.advance(at(1_000))
    expected = [(check(event, table_as_of(events, time)), time) for time, event in events if isinstance(event, Payment)]
    assert checked(harness) == sorted(expected)
    assert harness.counts("checked")["late"] == 0


@pytest.mark.guarantee("G13")
@given(events=events_of, steps=st.integers(1, 3), crash_at=crashes)
def test_a_firing_joins_a_part_of_what_waits(events: list[Event], steps: int, crash_at: int) -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=True, removes=removes, copies=1)
    expected = [(check(event, table_as_of(events, time)), time) for time, event in events if isinstance(event, Payment)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broadcast, "MAX_STEPS", steps)
        harness = run(topology, events, crash_at, None)
        harness.advance(at(1_000))
    assert checked(harness) == sorted(expected)


def test_a_late_record_meets_the_table_of_the_low_watermark() -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=True, copies=1)
    harness = TopologyHarness(topology)
    send(harness, 10, Rule(1, 1))
    send(harness, 20, Rule(1, 2))
    send(harness, 25, Payment(1, 1))
    harness.advance(at(15))
    send(harness, 5, Payment(1, 2))
    assert checked(harness) == [(Checked(2, rows(1)), 5)]
    assert dict(harness.state("checked", 0).table) == {"1": Rule(1, 1)}
    harness.advance(at(30))
    assert checked(harness)[0] == (Checked(1, rows(2)), 25)


@pytest.mark.guarantee("G13")
def test_a_copy_keeps_only_the_table_when_the_watermark_passed() -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=True, removes=removes, copies=1)
    harness = TopologyHarness(topology)
    for time in range(50):
        send(harness, time, Rule(time % 3, time % 4))
        send(harness, time, Payment(time, time))
        harness.advance(at(time))
        assert len(harness.state("checked", 0).records) <= 1
        assert len(harness.state("checked", 0).changes) <= 1
    for number in range(3):
        send(harness, 60, Rule(number, 0))
    harness.advance(at(61))
    for name, key in (("checked", "0"), ("checked-table", "")):
        assert harness.state(name, key) is None
        assert harness.timers(name, key) == {}


def rows(most: int) -> list[tuple[str, int]]:
    return [("1", most)]


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize("late", [mw.Late.PROCESS, mw.Late.DROP, "late-payments"])
@pytest.mark.parametrize("as_of", [False, True])
def test_a_late_change_holds_from_the_low_watermark_on(as_of: bool, late: Any) -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=as_of, copies=3, late=late)
    if isinstance(late, str):
        topology.stream(late, Payment)
    harness = TopologyHarness(topology, split_at=SPLITS)
    send(harness, 0, Rule(1, 5))
    harness.advance(at(100))
    send(harness, 50, Rule(1, 6))
    for number in range(9):
        send(harness, 100, Payment(number, number))
    harness.advance(at(200))
    assert checked(harness) == [(Checked(number, rows(6)), 100) for number in range(9)]
    assert harness.counts("checked-table")["late"] == 1
    assert harness.counts("checked")["late"] == 0, "no copy finds a change late"
    send(harness, 150, Payment(1, 9))
    if late is mw.Late.PROCESS:
        assert checked(harness)[9:] == [(Checked(9, rows(6)), 150)]
    else:
        assert checked(harness)[9:] == []
    if isinstance(late, str):
        assert harness.values("late-payments") == [Payment(1, 9)]


@pytest.mark.guarantee("G14", section="4.5")
@pytest.mark.parametrize("late", [mw.Late.PROCESS, mw.Late.DROP, "late-payments"])
@pytest.mark.parametrize("as_of", [False, True])
def test_a_change_that_is_late_at_a_copy_is_not_lost(as_of: bool, late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's new owner does not know yet which low watermark the copies have seen."""
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=as_of, copies=3, late=late)
    harness, start = TopologyHarness(topology, split_at=SPLITS), VirtualCluster.start

    def start_behind(self: VirtualCluster, name: str, *args: Any) -> None:
        now = self.watermarks
        if name == "checked-table":
            self.watermarks = {}
        start(self, name, *args)
        self.watermarks = now

    send(harness, 0, Rule(1, 5))
    harness.advance(at(100))
    with monkeypatch.context() as patch:
        patch.setattr(VirtualCluster, "start", start_behind)
        harness.crash()
    send(harness, 50, Rule(1, 6))
    harness.advance(at(101))
    for number in range(9):
        send(harness, 150, Payment(number, number))
    harness.advance(at(200))
    assert checked(harness) == [(Checked(number, rows(6)), 150) for number in range(9)]
    assert as_of or harness.counts("checked")["late"] == 3, "each copy has found the change late"
    assert harness.counts("checked")["dropped"] == 0
    if isinstance(late, str):
        assert harness.values(late) == []


@pytest.mark.parametrize("most", [10_000, 20_000])
def test_all_rows_may_change_at_one_time(most: int) -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=True, copies=1, limit=most)
    harness = TopologyHarness(topology)
    harness.send_all("rules", [(Rule(number, 1), at(0)) for number in range(most)])
    send(harness, 1, Payment(1, 1))
    harness.advance(at(2))
    assert [len(one.rules) for one in harness.values("checked")] == [most]


@pytest.mark.parametrize(("as_of", "most"), [(False, 4), (True, 5)])
def test_a_late_change_is_older_only_where_time_counts(as_of: bool, most: int) -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, check, Checked, as_of=as_of, copies=3)
    harness = TopologyHarness(topology, split_at=SPLITS)
    send(harness, 10, Rule(1, 5))
    harness.advance(at(100))
    send(harness, 9, Rule(1, 4))
    for number in range(9):
        send(harness, 200, Payment(number, number))
    harness.advance(at(300))
    assert checked(harness) == [(Checked(number, rows(most)), 200) for number in range(9)]
    assert harness.counts("checked-table")["dropped"] == int(as_of)


@pytest.mark.parametrize("as_of", [False, True])
def test_a_table_that_is_too_large_says_so_and_can_grow(as_of: bool) -> None:
    def program(limit: int) -> mw.Topology:
        topology, payments, rules = bank()
        payments.join_broadcast("checked", rules, check, Checked, as_of=as_of, removes=removes, copies=3, limit=limit)
        return topology

    harness = TopologyHarness(program(2))
    for time, rule in enumerate([Rule(1, 1), Rule(2, 2), Rule(2, 3), Rule(1, 0), Rule(3, 3)]):
        send(harness, time, rule)
    harness.advance(at(5))

    def one_too_many() -> None:
        send(harness, 5, Rule(4, 4))
        harness.advance(at(6))

    with pytest.raises(ValueError, match="has 2 rows, which is its limit, so there is no room for row '4': raise"):
        one_too_many()
    harness.update(program(3))
    harness.advance_clock(mw.minutes(10))
    send(harness, 7, Payment(1, 1))
    harness.advance(at(8))
    assert checked(harness) == [(Checked(1, [("2", 3), ("3", 3), ("4", 4)]), 7)]


def test_a_change_beyond_the_limit_may_be_given_up() -> None:
    topology, payments, rules = bank()
    given_up = mw.dead_letter(after=1)
    payments.join_broadcast("checked", rules, check, Checked, copies=3, limit=1, on_failure=given_up)
    harness = TopologyHarness(topology)
    for event in (Rule(1, 1), Rule(2, 2), Rule(1, 3), Payment(1, 1)):
        send(harness, 0, event)
    assert checked(harness) == [(Checked(1, rows(3)), 0)]
    assert [(letter.computation, letter.key) for letter in harness.values("dead-letters")] == [("checked-table", "2")]


def test_a_dead_letter_has_the_key_of_a_joined_record() -> None:
    """Regression: the dead letter had the number of the copy as its key. No user can find the record by it."""
    topology, payments, rules = bank()

    def fail(payment: Payment, table: Mapping[str, Rule]) -> int:
        raise ValueError("a fault")

    given_up = mw.dead_letter(after=1)
    payments.key_by("card").join_broadcast("keyed", rules, fail, int, copies=3, on_failure=given_up)
    payments.join_broadcast("any", rules, fail, int, copies=3, on_failure=given_up)
    harness = TopologyHarness(topology)
    send(harness, 0, Payment(42, 1))
    assert {letter.computation: letter.key for letter in harness.values("dead-letters")} == {"keyed": "42", "any": ""}


@pytest.mark.parametrize("as_of", [False, True])
def test_a_table_of_rows_that_may_be_none_is_refused(as_of: bool) -> None:
    topology, payments, _ = bank()
    names: Any = topology.source("names", str | None).key_by(mw.everything)
    with pytest.raises(mw.UsageError, match=r"join_broadcast\('out'\): a row may be None, which stands for"):
        payments.join_broadcast("out", names, lambda payment, table: len(table), int, as_of=as_of)


def test_a_function_that_fails_holds_up_only_its_copy() -> None:
    topology, payments, rules = bank()

    def fails(payment: Payment, table: Mapping[str, Rule]) -> int:
        return payment.number // table["1"].most

    payments.join_broadcast("checked", rules, fails, int, copies=3, on_failure=mw.dead_letter(after=1))
    harness = TopologyHarness(topology)
    for event in (Payment(1, 8), Rule(1, 2), Payment(2, 8)):
        send(harness, 0, event)
    assert harness.values("checked") == [4]
    assert "KeyError" in harness.failures[0]


@pytest.mark.parametrize("as_of", [False, True])
def test_the_function_cannot_change_the_table(as_of: bool) -> None:
    topology, payments, rules = bank()
    payments.join_broadcast("checked", rules, lambda _, table: table.clear(), int, as_of=as_of)  # type: ignore[attr-defined]
    harness = TopologyHarness(topology)

    def pay() -> None:
        send(harness, 0, Payment(1, 1))
        harness.advance(at(1))

    with pytest.raises(AttributeError, match="clear"):
        pay()


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("changed", [{"copies": 4}, {"as_of": True}])
@pytest.mark.parametrize("produced", [False, True])
def test_an_update_cannot_change_the_copies(produced: bool, changed: dict[str, Any]) -> None:
    def program(**options: Any) -> mw.Topology:
        topology, payments, rules = bank()
        left = payments.key_by("card").deduplicate("first") if produced else payments
        left.join_broadcast("checked", rules, check, Checked, **{"copies": 3, **options})
        return topology

    harness = TopologyHarness(program())
    send(harness, 0, Rule(1, 1))
    harness.update(program(limit=7))
    with pytest.raises(mw.TopologyError, match=r"TableChange\[Rule, Literal\[4\]\]|growing"):
        harness.update(program(**changed))
    send(harness, 0, Payment(1, 1))
    assert checked(harness) == [(Checked(1, rows(1)), 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": 0}, "takes a positive copies, not 0"),
        ({"copies": True}, "takes copies= as a whole number, not True"),
        ({"limit": -1}, "takes a positive limit, not -1"),
        ({"exactly_once": False}, "'checked' needs exactly_once: a change of its table that came twice"),
        (
            {"as_of": True, "on_failure": mw.dead_letter()},
            "one timer for all records of a copy",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    _, payments, rules = bank()
    with pytest.raises(mw.UsageError, match=message):
        payments.join_broadcast("checked", rules, check, Checked, **options)


def test_wrong_streams_are_refused() -> None:
    _, payments, rules = bank()
    with pytest.raises(mw.UsageError, match=r"join_broadcast\('checked'\): Rule has no field 'di'"):
        payments.join_broadcast("checked", rules.stream.key_by("di"), check, Checked)
    with pytest.raises(mw.UsageError, match=r"Payment has no field 'crad'"):
        payments.key_by("crad").join_broadcast("checked", rules, check, Checked)
    with pytest.raises(mw.UsageError, match="two streams of one topology"):
        payments.join_broadcast("checked", bank()[2], check, Checked)
    with pytest.raises(mw.UsageError, match="nothing says the type of the results"):
        payments.join_broadcast("checked", rules, lambda payment, table: len(table))


def test_a_stream_is_joined_with_a_table_of_itself() -> None:
    topology, payments, _ = bank()
    large = payments.filter(lambda one: one.number > 5).key_by("card")
    payments.join_broadcast("checked", large, lambda one, table: [one.number, *sorted(table)], list[Any], copies=2)
    harness = TopologyHarness(topology)
    for payment in (Payment(1, 9), Payment(2, 3)):
        send(harness, 0, payment)
    assert harness.values("checked")[1:] == [[3, "1"]]
