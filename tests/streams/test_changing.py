"""Functions that change their argument: no other consumer, log or state gets the change (sections 4.2 and 4.3)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg
from millwheel.client.injector.encoding import RecordEncoder
from millwheel.client.injector.routing import ConsumerRouting, Route
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.function_code import may_change_its_argument
from millwheel.streams.steps import Filter, FlatMap, Map, Only, Step, on_a_copy, to_many
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_700_000_000_000_000)


class Visit(msgspec.Struct):
    user: str
    pages: int = 0


def anonymous(visit: Visit) -> Visit:
    visit.user = "anonymous"
    return visit


def one_more(visit: Visit) -> Visit:
    visit.pages += 1
    return visit


def user_without_case(visit: Visit) -> str:
    visit.user = visit.user.lower()
    return visit.user


def seen(state: int, visit: Visit) -> tuple[int, list[str]]:
    return state + 1, [f"{visit.user} {state + 1}"]


def longer(state: Visit | None, visit: Visit) -> tuple[Visit, list[Visit]]:
    state = state or Visit(visit.user)
    state.pages += 10
    return state, [state]


def program() -> tuple[mw.Topology, mw.Stream[Visit]]:
    topology = mw.Topology("site")
    return topology, topology.source("visits", Visit)


def run(topology: mw.Topology, *users: str) -> TopologyHarness:
    harness = TopologyHarness(topology)
    for user in users:
        harness.send("visits", Visit(user), NOON)
    return harness


CHANGING: dict[str, Callable[[mw.Stream[Visit]], Any]] = {
    "map": lambda visits: visits.map(anonymous).key_by("user"),
    "filter": lambda visits: visits.filter(lambda visit: bool(anonymous(visit))).map(anonymous).key_by("user"),
    "key": lambda visits: visits.key_by(user_without_case),
}


@pytest.mark.parametrize("change", CHANGING.values(), ids=CHANGING)
def test_another_readers_key_is_not_changed(change: Callable[[mw.Stream[Visit]], Any]) -> None:
    topology, visits = program()
    change(visits).aggregate("a", count=agg.count())
    visits.key_by("user").update("b", 0, seen)
    sent = [Visit("Ann"), Visit("Bob")]
    harness = TopologyHarness(topology)
    for visit in sent:
        harness.send("visits", visit, NOON)
    assert harness.values("b") == ["Ann 1", "Bob 1"]
    assert sent == [Visit("Ann"), Visit("Bob")], "the injector's values are unchanged"


def test_a_state_that_is_produced_is_not_changed() -> None:
    topology, visits = program()
    totals = visits.key_by("user").update("totals", None, longer)
    totals.map(one_more).key_by("pages").aggregate("by-pages", count=agg.count())
    totals.key_by(lambda visit: one_more(visit).pages).aggregate("by-more", count=agg.count())
    totals.map(one_more).named("more")
    totals.map(one_more).named("more-again")
    harness = run(topology, "ann", "ann")
    assert [visit.pages for visit in harness.values("totals")] == [10, 20]
    assert harness.state("totals", "ann") == [Visit("ann", 20)]
    for name in ("more", "more-again"):
        assert [visit.pages for visit in harness.values(name)] == [11, 21]
    for name in ("by-pages", "by-more"):
        assert [key for key in ("10", "11", "12", "20", "21", "22") if harness.state(name, key)] == ["11", "21"]


def test_one_hop_may_read_a_stream_twice() -> None:
    topology, visits = program()
    visits.map(anonymous).union(visits).named("both")
    assert [visit.user for visit in run(topology, "ann").values("both")] == ["anonymous", "ann"]


def test_one_step_may_read_a_stream_twice() -> None:
    topology, visits = program()
    changed = visits.filter(lambda visit: one_more(visit).pages > 0)
    changed.union(visits).key_by("user").update("seen", 0, lambda state, visit: (0, [visit.pages]), int)
    assert run(topology, "ann").values("seen") == [1, 0]


def test_late_records_of_two_readings_are_not_changed() -> None:
    topology, visits = program()
    changed = visits.filter(lambda visit: one_more(visit).pages > 0)
    changed.union(visits).key_by("user").update("seen", 0, seen, late="late")
    harness = TopologyHarness(topology)
    harness.advance(mw.Timestamp(NOON + 1))
    harness.send("visits", Visit("ann"), NOON)
    assert [visit.pages for visit in harness.values("late")] == [1, 0]


def test_an_injector_keys_each_consumer_from_the_value() -> None:
    topology, visits = program()
    for number in range(3):
        visits.map(one_more).key_by("pages").aggregate(f"by-{number}", count=agg.count())
    encoder, visit = RecordEncoder("visits", topology), Visit("ann")
    (encoded,) = encoder.encode([visit], specs.VALUE_FORMAT_MSGPACK)
    for number in range(3):
        routes = [Route(ALL_KEYS, "by.1.j2", "")]
        name, incarnation = f"by-{number}", IncarnationId("by.1")
        consumer = ConsumerRouting(incarnation, routes, topology="site", computation=name, function="f")
        assert encoder.keys(consumer, [visit], [encoded], None, specs.VALUE_FORMAT_MSGPACK) == [b"1"]
    assert visit == Visit("ann")


def test_a_generator_may_yield_one_object_again() -> None:
    def twice(visit: Visit) -> Iterator[Visit]:
        yield one_more(visit)
        yield one_more(visit)

    topology, visits = program()
    visits.flat_map(twice, Visit).filter(lambda visit: visit.pages > 0).named("seen")
    assert [visit.pages for visit in run(topology, "ann").values("seen")] == [1, 2]


class Counting(msgspec.Struct):
    visit: Visit

    def __post_init__(self) -> None:
        self.visit.pages += 1


def counting(visit: Visit) -> Counting:
    return Counting(visit)


def by_argument(visit: Any) -> Any:
    return visit.user(len)


def in_place(visit: Any) -> Any:
    pages = visit.pages
    pages += [1]
    return pages


def by_item(visit: Any) -> Any:
    visit["user"] = ""
    return visit


READING: list[Callable[[Any], Any]] = [
    lambda visit: visit.pages > 3 and visit.user != "ann",
    lambda visit: visit["pages"] % 123 == 0,
    lambda visit: f"{visit.user} {visit.pages}",
    lambda visit: (visit.user, [*visit.pages]),
    lambda visit: Visit(str(visit.user), pages=max(visit.pages, len(visit.user))),
    operator.attrgetter("user"),
]


@pytest.mark.parametrize("function", READING)
def test_a_function_that_only_reads_costs_no_copy(function: Callable[[Any], Any]) -> None:
    assert not may_change_its_argument(function)
    steps: list[Step] = [Filter(function), Only(Visit), Map(function), FlatMap(function)]
    assert on_a_copy(steps, str) == tuple(steps)


def by_key(visit: Any) -> Any:
    return max(visit.user, key=lambda _: visit.pages.pop())


CHANGES = [anonymous, by_key, one_more, user_without_case, counting, by_argument, in_place, by_item, list.pop, Counting]


@pytest.mark.parametrize("function", CHANGES)
def test_any_other_function_may_change_its_argument(function: Callable[[Any], Any]) -> None:
    assert may_change_its_argument(function)


def test_what_a_filter_drops_is_not_copied() -> None:
    copied: list[Visit] = []

    def copy(visit: Visit) -> Visit:
        copied.append(visit)
        return Visit(visit.user, visit.pages)

    steps: list[Step] = [Only(Visit), Filter(lambda visit: visit.pages > 0), Map(one_more), Map(one_more)]
    pipeline = to_many(on_a_copy(steps, copy))
    small, large = Visit("ann"), Visit("bob", 1)
    assert [*pipeline(small), *pipeline(large)] == [Visit("bob", 3)]
    assert (copied, large.pages) == ([large], 1)
