"""Keys after steps: no key is read from what a filter drops, and an update notices a key that changes (G1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.master.updating import update_problems
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.spec import build_spec
from millwheel.testing import TopologyHarness
from tests.streams.test_programs import at


class User(msgspec.Struct, frozen=True):
    id: str


class Event(msgspec.Struct, frozen=True):
    user: User | None
    page: int = 0


class Count(mw.Computation[Event, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Event]) -> None:
        ctx.state += 1


Build = Callable[[mw.Stream[Event]], Any]


def program(build: Build) -> mw.Topology:
    topology = mw.Topology("site")
    build(topology.source("events", Event)).process("count", Count, {})
    return topology


def spec_of(build: Build) -> specs.TopologySpec:
    return build_spec(program(build).plan())[0]


def key_of(build: Build) -> specs.KeySpec:
    return spec_of(build).computations[0].inputs[0].key


def known(event: Event) -> bool:
    return event.user is not None


def lower(event: Event) -> str:
    assert event.user is not None
    return event.user.id.lower()


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize("parts", [(lower,), ("user.id",), ("page", "user.id")])
def test_no_key_is_read_from_a_record_that_a_filter_drops(parts: tuple[Any, ...]) -> None:
    harness = TopologyHarness(program(lambda events: events.filter(known).key_by(*parts)))
    for number, user in enumerate([User("a"), None, User("a")]):
        harness.send("events", Event(user, 7), timestamp=at(number))
    harness.advance(at(60))
    assert harness.state("count", "7|a" if len(parts) == 2 else "a") == 2
    assert harness.failures == []


def test_a_path_that_each_record_has_stays_a_path_after_a_filter() -> None:
    assert list(key_of(lambda events: events.filter(known).key_by("page")).fields) == ["page"]
    assert list(key_of(lambda events: events.filter(known).union(events).key_by("user.id")).fields) == ["user.id"]
    assert key_of(lambda events: events.filter(known).key_by("user.id")).function == "user.id"


def bucket(count: int) -> Callable[[Event], int]:
    def bucket_of(event: Event) -> int:
        return event.page % count

    return bucket_of


def other_lower(event: Event) -> str:
    return lower(event)[:1]


SIZE = 3
SAME: list[tuple[Build, Build]] = [
    (lambda events: events.key_by("user.id"), lambda events: events.filter(known).key_by("user.id")),
    (lambda events: events.key_by(lower), lambda events: events.filter(lambda event: event.page > 3).key_by(lower)),
    (
        lambda events: events.map(lambda event: event, Event).key_by("page"),
        lambda events: events.filter(known).map(lambda other: other, Event).key_by("page"),
    ),
]
OTHER: list[tuple[Build, Build]] = [
    (lambda events: events.key_by(lower), lambda events: events.key_by(other_lower)),
    (
        lambda events: events.key_by(lambda event: event.page % 2),
        lambda events: events.key_by(lambda event: event.page % 3),
    ),
    (lambda events: events.key_by(bucket(2)), lambda events: events.key_by(bucket(3))),
    (
        lambda events: events.map(lambda event: Event(event.user, event.page + 1), Event).key_by("page"),
        lambda events: events.map(lambda event: Event(event.user, event.page + 2), Event).key_by("page"),
    ),
    (
        lambda events: events.map(lambda event: event, Event).key_by("page"),
        lambda events: events.map(lambda event: event, Event).key_by("page", "user.id"),
    ),
    (
        lambda events: events.map(lambda event: event, Event).key_by("page"),
        lambda events: events.map(lambda event: event, Event).key_by(lambda event: event.page % 3),
    ),
]


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize(("before", "after"), OTHER)
def test_an_update_notices_a_key_that_changes(before: Build, after: Build) -> None:
    harness = TopologyHarness(program(before))
    with pytest.raises(mw.TopologyError, match="would take effect under the other key"):
        harness.update(program(after))


async def page_of(event: Event) -> int:
    return event.page


def enriched(events: mw.Stream[Event], *parts: Any, concurrency: int = 4) -> Any:
    return events.key_by(*parts).enrich("count", page_of, int, concurrency=concurrency)


def spread(events: mw.Stream[Event], *parts: Any, shards: int = 4) -> Any:
    return events.key_by(*parts).window(windows.tumbling(mw.hours(1))).aggregate("n", n=agg.count(), spread=shards)


STEP_OF_TWO_KEYS: list[tuple[Build, Build]] = [
    (lambda events: enriched(events, "page"), lambda events: enriched(events, lower)),
    (lambda events: enriched(events, "page"), lambda events: enriched(events, "page", concurrency=5)),
    (lambda events: enriched(events.filter(known), lower), lambda events: enriched(events.filter(known), "page")),
    (lambda events: events.enrich("count", page_of, int), lambda events: enriched(events, "page", concurrency=64)),
    (lambda events: spread(events, "page"), lambda events: spread(events, lower)),
    (lambda events: spread(events, "page"), lambda events: spread(events, "page", shards=5)),
]


def declared(build: Build) -> mw.Topology:
    topology = mw.Topology("site")
    build(topology.source("events", Event))
    return topology


@pytest.mark.guarantee("G1", section="4.2")
@pytest.mark.parametrize(("before", "after"), STEP_OF_TWO_KEYS)
def test_a_key_that_is_hashed_is_compared_in_an_update(before: Build, after: Build) -> None:
    harness = TopologyHarness(declared(before))
    harness.send("events", Event(User("a"), 7), timestamp=at(0))
    harness.update(declared(before))
    with pytest.raises(mw.TopologyError, match="would take effect under the other key"):
        harness.update(declared(after))
    harness.close()


@pytest.mark.parametrize(("before", "after"), SAME)
def test_an_update_may_change_filters_before_a_key(before: Build, after: Build) -> None:
    TopologyHarness(program(before)).update(program(after))


def test_the_same_program_has_the_same_keys() -> None:
    for before, after in [*SAME, *OTHER]:
        assert key_of(before) == key_of(before)
        assert key_of(after) == key_of(after)


def test_plain_data_that_a_lambda_reads_by_name_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(events: mw.Stream[Event]) -> Any:
        return events.key_by(lambda event: max(event.page % SIZE for _ in [0]))

    before = key_of(build)
    monkeypatch.setitem(globals(), "SIZE", 4)
    assert key_of(build).code != before.code


def test_code_of_another_python_is_not_compared() -> None:
    before, after = map(spec_of, OTHER[1])
    for each in (before, after):
        each.computations[0].inputs[0].key.function = "site:<lambda>"
    assert len(update_problems(before, after)) == 1
    after.computations[0].inputs[0].key.code = "other-314-0:" + "0" * 32
    assert update_problems(before, after) == []
    after.computations[0].inputs[0].key.code = ""
    assert update_problems(before, after) == []


class Left(msgspec.Struct, tag=True):
    a: int
    b: int


class Right(msgspec.Struct, tag=True):
    a: int
    b: int


def joined(left: Callable[[Any], int], right: Callable[[Any], int]) -> specs.TopologySpec:
    topology = mw.Topology("site")
    both = topology.source("events", Left | Right)
    pairs = both.only(Left).key_by(left), both.only(Right).key_by(right)
    pairs[0].join("pairs", pairs[1], lambda one, other: f"{one.a}/{other.a}", str)
    return build_spec(topology.plan())[0]


@pytest.mark.guarantee("G1", section="4.2")
def test_an_update_notices_keys_that_two_kinds_exchange() -> None:
    by_a, by_b = (lambda value: value.a % 10), (lambda value: value.b % 10)
    assert update_problems(joined(by_a, by_b), joined(by_a, by_b)) == []
    assert update_problems(joined(by_a, by_b), joined(by_b, by_a)) != []


class Before(msgspec.Struct):
    user: str | None


class After(msgspec.Struct):
    account: str | None = msgspec.field(name="user")


def test_a_field_may_get_another_name_in_the_class() -> None:
    def filtered(kind: Any, path: str) -> specs.TopologySpec:
        topology = mw.Topology("site")
        topology.source("events", kind).filter(bool).key_by(path).process("count", Tally, {})
        return build_spec(topology.plan())[0]

    one, other = filtered(Before, "user"), filtered(After, "account")
    assert one.computations[0].inputs[0].key == other.computations[0].inputs[0].key


class Tally(mw.Computation[Any, int]):
    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        ctx.state += 1
