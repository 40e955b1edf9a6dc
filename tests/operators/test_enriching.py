"""Calls of a service for each record: failures, order and how many run at the same time (G1, G5, G13)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millwheel as mw
from millwheel.sdk.compiled import consumers_of
from millwheel.testing import TopologyHarness

BEGIN = 1_700_000_000_000_000
SHORT = mw.Duration(1)


class Item(msgspec.Struct, frozen=True):
    shop: int
    number: int


class Service:
    """Answers by the number, after it has failed some times for each value."""

    def __init__(self, failures: int = 0, how: Callable[[], Exception] = lambda: ConnectionError("down")) -> None:
        self.failures = failures
        self.how = how
        self.calls: list[Item] = []

    async def __call__(self, item: Item) -> str:
        self.calls.append(item)
        if self.calls.count(item) <= self.failures:
            raise self.how()
        await asyncio.sleep(0)
        return f"{item.shop}/{item.number}"


def send(topology: mw.Topology, items: list[Item], crash_at: int = -1) -> TopologyHarness:
    harness = TopologyHarness(topology, split_at=["3"])
    for number, item in enumerate(items):
        if number == crash_at:
            harness.crash()
        harness.send("items", item, timestamp=mw.Timestamp(BEGIN + number))
    return harness


items_of = st.lists(st.builds(Item, st.integers(0, 3), st.integers(0, 9)), max_size=12)


@pytest.mark.guarantee("G1")
@given(items=items_of, crash_at=st.integers(0, 12), concurrency=st.integers(1, 8))
def test_each_record_has_a_result(items: list[Item], crash_at: int, concurrency: int) -> None:
    topology = mw.Topology("shop")
    source = topology.source("items", Item)
    some = source.filter(lambda item: item.number != 5)
    some.enrich("any", Service(), str, concurrency=concurrency)
    some.key_by("shop").enrich("keyed", Service(), str, concurrency=concurrency)
    harness = send(topology, items, crash_at)
    expected = [(f"{item.shop}/{item.number}", BEGIN + at) for at, item in enumerate(items) if item.number != 5]
    assert sorted((one.value, one.timestamp) for one in harness.produced("any")) == sorted(expected)
    for shop in range(4):
        mine = [one for one in expected if one[0].startswith(f"{shop}/")]
        found = [(one.value, one.timestamp) for one in harness.produced("keyed")]
        assert [one for one in found if one[0].startswith(f"{shop}/")] == mine, "in the order of the key"
    harness.close()


@pytest.mark.guarantee("G13")
def test_the_keys_bound_how_many_calls_run() -> None:
    topology = mw.Topology("shop")
    source = topology.source("items", Item)
    source.enrich("any", Service(), str, concurrency=5)
    source.key_by("shop").enrich("keyed", Service(), str, concurrency=5)
    items = [Item(shop, number) for shop in range(20) for number in range(20)]
    for _, extract in consumers_of(topology, "items"):
        assert {extract(item) for item in items} == {b"0", b"1", b"2", b"3", b"4"}
    (keyed,) = [extract for name, extract in consumers_of(topology, "items") if name == "keyed"]
    for shop in range(20):
        assert len({keyed(item) for item in items if item.shop == shop}) == 1


def test_a_call_is_repeated_and_then_given_up() -> None:
    topology = mw.Topology("shop")
    source = topology.source("items", Item)
    twice, often, lost = Service(2), Service(9), Service(9)
    source.enrich("twice", twice, str, retries=2, backoff=SHORT)
    source.enrich("often", often, str, retries=2, backoff=SHORT, otherwise=lambda item: f"no {item.number}")
    source.enrich("lost", lost, str, retries=1, backoff=SHORT, on_failure=mw.dead_letter(after=1))
    harness = send(topology, [Item(1, 7)])
    assert harness.values("twice") == ["1/7"]
    assert harness.values("often") == ["no 7"]
    assert [len(one.calls) for one in (twice, often, lost)] == [3, 3, 2]
    (letter,) = harness.values("dead-letters")
    assert (letter.computation, letter.stream) == ("lost", "items")
    assert "ConnectionError: down" in letter.error
    harness.close()


def test_waits_between_calls_take_no_time_in_a_test() -> None:
    """Regression: ten records that fail with ``retries=4`` took 15 seconds, because waits were in real time."""
    topology = mw.Topology("shop")
    down = Service(99)
    topology.source("items", Item).enrich("prices", down, str, retries=8, backoff=mw.hours(1), otherwise=lambda _: "no")
    harness = send(topology, [Item(1, 7)])
    assert harness.values("prices") == ["no"]
    assert len(down.calls) == 9
    harness.close()


def test_a_failed_call_is_tried_again_by_default() -> None:
    topology = mw.Topology("shop")
    topology.source("items", Item).enrich("once", Service(1), str)
    harness = TopologyHarness(topology)
    with pytest.raises(ConnectionError, match="down"):
        harness.send("items", Item(1, 7), timestamp=mw.Timestamp(BEGIN))
    harness.advance(mw.Timestamp(BEGIN + 9))
    assert harness.watermark("once") == BEGIN, "the record is not given up"
    harness.advance_clock(mw.seconds(1))
    assert harness.values("once") == ["1/7"]
    assert harness.watermark("once") == BEGIN + 9
    harness.close()


def test_a_call_that_takes_too_long_fails() -> None:
    async def never(item: Item) -> str:
        await asyncio.Event().wait()
        return "never"

    topology = mw.Topology("shop")
    source = topology.source("items", Item)
    source.enrich("late", never, str, timeout=mw.milliseconds(1), otherwise=lambda item: "too late")
    harness = send(topology, [Item(1, 7)])
    assert harness.values("late") == ["too late"]
    harness.close()


def test_wrong_options_are_refused() -> None:
    source = mw.Topology("shop").source("items", Item)
    with pytest.raises(mw.UsageError, match="a positive concurrency, not 0"):
        source.enrich("prices", Service(), str, concurrency=0)
    mistakes = [(0, 0, 1, "timeout=...) must be a positive"), (1, -1, 1, "retries from 0 on, not -1")]
    for timeout, retries, backoff, message in [*mistakes, (1, 0, 0, "backoff=...) must be a positive")]:
        with pytest.raises(mw.UsageError, match=re.escape(message)):
            source.enrich(
                "prices", Service(), str, timeout=mw.Duration(timeout), retries=retries, backoff=mw.Duration(backoff)
            )


def test_a_dead_letter_has_the_key_of_the_record() -> None:
    """Regression: the dead letter had the number of the call's slot as its key. No user can find the record by it."""
    topology = mw.Topology("shop")
    source = topology.source("items", Item)
    doubled = source.map(lambda item: Item(item.shop + 40, item.number), Item)
    policy = mw.dead_letter(after=1)
    doubled.key_by("shop").enrich("keyed", Service(failures=9), str, concurrency=3, on_failure=policy)
    source.enrich("any", Service(failures=9), str, concurrency=3, on_failure=policy)
    harness = send(topology, [Item(2, 7)])
    assert {letter.computation: letter.key for letter in harness.values("dead-letters")} == {"keyed": "42", "any": ""}
    harness.close()


def test_a_key_that_is_not_found_again_does_not_hide_the_error() -> None:
    topology, service = mw.Topology("shop"), Service(failures=9)

    def shop(item: Item) -> int:
        return item.shop // (not service.calls)

    keyed = topology.source("items", Item).key_by(shop)
    keyed.enrich("keyed", service, str, concurrency=1, on_failure=mw.dead_letter(after=1))
    harness = send(topology, [Item(2, 7)])
    (letter,) = harness.values("dead-letters")
    assert (letter.key, letter.error) == ("0", "ConnectionError: down")
    harness.close()
