"""Routing is sent in parts and as changes. The receiver has the whole routing after any changes (7.1, G11)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel.client.routing_view import RoutingView
from millwheel.coordination.state import CoordinatorState
from millwheel.master.change_plan import PlanBuilder
from millwheel.master.services.routing_diff import RoutingDiff
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId
from millwheel.model.interval_chunks import interval_from_proto, interval_to_proto
from millwheel.model.interval_map import initial_intervals
from millwheel.model.keys import KeyInterval
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control


class IntervalMaps:
    """Interval maps of some consumers, changed through plans; one watcher."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.state, self.known = CoordinatorState(), Catalog()
        self.reported, self.view = RoutingDiff(), RoutingView()
        self.numbers = 0
        for name, size in sizes.items():
            self.put(name, size)

    def commit(self, builder: PlanBuilder) -> None:
        plan = builder.plan()
        transition = self.state.decide(plan.compares, plan.puts, plan.deletes, 0.0)
        assert transition is not None
        received = self.state.revision
        self.state.apply(transition)
        for changes in self.state.changes_after("", received):
            self.known.apply(changes)

    def interval(self, keys: KeyInterval) -> catalog.IntervalRecord:
        self.numbers += 1
        return catalog.IntervalRecord(keys=interval_to_proto(keys), journal=f"j{self.numbers}", sequencer=self.numbers)

    def put(self, name: str, size: int) -> None:
        record = catalog.IntervalMapRecord(computation=name, topology="t")
        record.intervals.extend(self.interval(keys) for keys in initial_intervals(size))
        builder = PlanBuilder(self.known)
        builder.put_map(IncarnationId(name), record)
        self.commit(builder)

    def change(self, name: str, at: int, kind: str) -> None:
        intervals = list(self.known.maps[IncarnationId(name)])
        at %= len(intervals)
        old = intervals[at : at + (2 if kind == "merge" else 1)]
        keys = KeyInterval(old[0].keys.start, interval_from_proto(old[-1].keys).end)
        middle = keys.start + b"m"
        cut = kind == "split" and middle in keys
        parts = [KeyInterval(keys.start, middle), KeyInterval(middle, keys.end)] if cut else [keys]
        builder = PlanBuilder(self.known)
        builder.put_intervals(IncarnationId(name), [self.interval(part) for part in parts])
        self.commit(builder)

    def watch(self, *names: str) -> tuple[int, control.WatchRoutingResponse | None]:
        """The number of intervals sent, and the watcher's routing."""
        head = control.WatchRoutingResponse()
        for name in names:
            head.consumers.add(incarnation=name, computation=name)
        reported, whole = 0, None
        for message in self.reported.news(self.known, head):
            reported += sum(len(route.intervals.intervals) for route in message.consumers)
            whole = self.view.take(message)
            assert (whole is None) == message.more
        return reported, whole


def shows(maps: IntervalMaps, whole: control.WatchRoutingResponse | None, *names: str) -> None:
    assert whole is not None
    assert [route.incarnation for route in whole.consumers] == list(names)
    for route in whole.consumers:
        assert route.intervals == maps.known.maps[route.incarnation].record
        assert not route.only_changes


CHANGES = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 8_000), st.sampled_from(["move", "split", "merge"])), max_size=12
)


@pytest.mark.paper(section="7.1")
@given(st.integers(1, 900), st.lists(CHANGES, min_size=1, max_size=4), st.booleans())
@settings(max_examples=30)
def test_what_was_sent_by_changes_is_the_map_as_it_stands(
    size: int, rounds: list[list[tuple[str, int, str]]], read_anew: bool
) -> None:
    maps = IntervalMaps({"a": size, "b": 3})
    shows(maps, maps.watch("a", "b")[1], "a", "b")
    for changes in rounds:
        for name, at, kind in changes:
            maps.change(name, at, kind)
        if read_anew:
            maps.known.load(maps.state.list(""))
        _, whole = maps.watch("a", "b")
        if changes:
            shows(maps, whole, "a", "b")
        else:
            assert whole is None


def test_a_change_of_a_large_map_is_sent_by_its_chunk_alone() -> None:
    maps = IntervalMaps({"a": 9_000})
    reported, whole = maps.watch("a")
    assert reported == 9_000
    shows(maps, whole, "a")
    maps.change("a", 4_321, "split")
    reported, whole = maps.watch("a")
    assert 2 <= reported <= 257
    shows(maps, whole, "a")
    maps.known.load(maps.state.list(""))
    assert maps.watch("a") == (0, None)


def test_consumers_that_come_and_go_are_sent_whole() -> None:
    maps = IntervalMaps({"a": 300, "b": 300})
    shows(maps, maps.watch("a")[1], "a")
    reported, whole = maps.watch("b", "a")
    assert reported == 300
    shows(maps, whole, "b", "a")
    maps.change("a", 7, "merge")
    shows(maps, maps.watch("b")[1], "b")
    reported, whole = maps.watch("a", "b")
    assert reported == 299
    shows(maps, whole, "a", "b")


def test_a_large_map_comes_in_messages_of_a_bounded_size() -> None:
    maps = IntervalMaps({"a": 9_000})
    head = control.WatchRoutingResponse()
    head.consumers.add(incarnation="a")
    messages = RoutingDiff().news(maps.known, head)
    assert len(messages) > 1
    assert all(len(message.consumers[0].intervals.intervals) <= 32 * 256 for message in messages)
    assert [message.more for message in messages] == [True] * (len(messages) - 1) + [False]
