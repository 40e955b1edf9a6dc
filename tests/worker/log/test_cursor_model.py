"""Cursors that are deleted and created again at any point of a commit, against a naive model (G1)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from millwheel.testing.store_effects import result_of
from millwheel.worker.log import AckOffset, DeleteCursor, Fetch, LogConfig, Start, Subscribe
from millwheel.worker.log.recovery import recover
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import Opened
from tests.worker.log.driver import JOURNAL, LOG, SMALL, STREAM, LogDriver, Reader, numbered

NAMES = ["a", "b"]


@dataclass
class Life:
    """One life of a cursor, and the bounds that its subscribers know: each response is checked against them."""

    least: int | None
    """The first offset. None if the life begins at the log's end, or if a crash lost the first offset."""
    earliest: int
    """A lower bound of the first offset, where that is unknown."""
    acked: int = 0
    """The largest ACK from its subscribers."""
    number: int = 0
    shown: bool = False


@dataclass
class Following:
    """One subscriber, its life, and how many of its responses are checked."""

    name: str
    life: Life
    reader: Reader = field(default_factory=Reader)
    checked: int = 0
    next: int = 0


class CursorMachine(RuleBasedStateMachine):
    """A second cursor ACKs nothing, so the log keeps its oldest record. A life from the oldest record begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = LogDriver(SMALL)
        self.current: dict[str, Life] = {}
        self.following: dict[str, Following] = {}
        self.gone: list[Following] = []
        """Subscribers of ended lives, or replaced ones. Their ACKs change nothing."""
        self.produced = 0

    @initialize()
    def keep(self) -> None:
        self.driver.subscribe("keeper", Start.OLDEST, credit=0)
        self.driver.run()

    # Records, the store, crashes.

    @rule(count=st.integers(1, 3))
    def produce(self, count: int) -> None:
        if self.driver.core.state.intake.bytes < 500:
            self.driver.deliver(numbered(self.produced, count))
            self.produced += count

    @precondition(lambda self: self.driver.waiting)
    @rule(index=st.integers(0, 3))
    def store_does_something(self, index: int) -> None:
        self.driver.step(index)

    @rule()
    def store_catches_up(self) -> None:
        self.driver.run()

    @rule()
    def time_passes(self) -> None:
        self.driver.pass_time(60_000)

    @precondition(lambda self: self.driver.waiting)
    @rule(applied=st.booleans())
    def crash(self, applied: bool) -> None:
        """The owner ends with an append in flight, which took effect or did not. A successor takes over."""
        self.check()
        self.driver.crash(applied)
        self.produced = self.driver.core.state.records.end
        self.driver.position = 1_000 * self.driver.sequencer
        known = {(name, life.number): life for name, life in self.lives() if life.number}
        self.gone += self.following.values()
        self.following.clear()
        facts = self.driver.core.state.cursors.facts()
        self.current = {
            name: known.get((name, number), Life(None, 0, acked, number))
            for name, acked, number in facts
            if name in NAMES
        }

    def lives(self) -> list[tuple[str, Life]]:
        followed = [(one.name, one.life) for one in [*self.following.values(), *self.gone]]
        return [*self.current.items(), *followed]

    # Cursors.

    @rule(name=st.sampled_from(NAMES), start=st.sampled_from(Start), credit=st.sampled_from([3, 1, 0]))
    def subscribe(self, name: str, start: Start, credit: int) -> None:
        if name not in self.current:
            end = self.driver.core.state.records.end
            self.current[name] = Life(0, 0) if start is Start.OLDEST else Life(None, end)
        if former := self.following.pop(name, None):
            self.gone.append(former)
        one = self.following[name] = Following(name, self.current[name])
        self.driver.handle(Subscribe(one.reader, name, start, 1_000))
        if credit:
            self.driver.handle(Fetch(one.reader, credit))

    @precondition(lambda self: self.following)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:
        one = self.following[data.draw(st.sampled_from(sorted(self.following)))]
        self.driver.handle(Fetch(one.reader, 2))

    @precondition(lambda self: any(one.next for one in self.following.values()))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        one = self.following[data.draw(st.sampled_from([n for n, one in sorted(self.following.items()) if one.next]))]
        below = data.draw(st.integers(0, one.next))
        one.life.acked = max(one.life.acked, below)
        self.driver.handle(AckOffset(one.reader, below))

    @precondition(lambda self: self.gone)
    @rule(data=st.data(), fetches=st.booleans())
    def the_gone_speak(self, data: st.DataObject, fetches: bool) -> None:
        one = data.draw(st.sampled_from(self.gone))
        self.driver.handle(Fetch(one.reader) if fetches else AckOffset(one.reader, one.next))

    @precondition(lambda self: any(one.life.number for one in self.gone))
    @rule(data=st.data())
    def the_gone_call_again(self, data: st.DataObject) -> None:
        """A subscriber whose call broke continues at its offset, if the same life of its cursor still exists."""
        old = data.draw(st.sampled_from([one for one in self.gone if one.life.number]))
        one = Following(old.name, old.life, next=old.next)
        if self.current.get(old.name) is old.life:
            if former := self.following.pop(old.name, None):
                self.gone.append(former)
            self.following[old.name] = one
        event = Subscribe(one.reader, old.name, Start.OLDEST, 1_000, old.next, life=old.life.number)
        if old.next <= self.driver.core.state.records.end:
            self.driver.handle(event)
            if self.following.get(old.name) is not one:
                assert one.reader.error is not None
                assert one.reader.error.reason == "CURSOR_DELETED"

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.driver.handle(DeleteCursor(name, name))
        self.current.pop(name, None)
        if one := self.following.pop(name, None):
            assert one.reader.error is not None
            self.gone.append(one)

    @precondition(lambda self: self.driver.waiting and self.current)
    @rule(data=st.data(), start=st.sampled_from(Start))
    def create_again(self, data: st.DataObject, start: Start) -> None:
        """Delete a cursor and create it again while an append is in flight."""
        name = data.draw(st.sampled_from(sorted(self.current)))
        self.delete(name)
        self.subscribe(name, start, 3)

    # Invariants.

    @invariant()
    def check(self) -> None:
        """Each response is of its subscriber's own life, and that life is durable."""
        stored = {(name, number) for name, _, number in self.in_store()}
        for one in self.following.values():
            for response in one.reader.published[one.checked :]:
                life = one.life
                assert (one.name, response.life) in stored, "shown before its creation is durable"
                assert life.number in (0, response.life), "a response of another life"
                assert life not in [other for other, _ in self.numbers(response.life, one.name) if other is not life]
                life.number = response.life
                if not life.shown and life.least is not None:
                    assert response.first == max(life.least, life.acked, one.next), "it begins elsewhere"
                life.shown = True
                assert response.first >= life.earliest
                assert response.acked <= max(life.acked, life.earliest, response.first)
                one.next = response.next
            one.checked = len(one.reader.published)

    def numbers(self, number: int, name: str) -> list[tuple[Life, int]]:
        return [(life, number) for other, life in self.lives() if other == name and life.number == number]

    def in_store(self) -> list[tuple[str, int, int]]:
        """The cursors that a takeover finds now."""
        store, config = self.driver.store, LogConfig(STREAM, LOG, JOURNAL, 1_000, frozenset(), settings=SMALL)
        head = result_of(store.read_head(JOURNAL))
        blobs = result_of(store.read_parts(JOURNAL, head.parts))
        entries = result_of(store.read_entries(JOURNAL, head.truncation_point + 1, head.commit))
        twin = LogState(config)
        recover(twin, Opened(head, dict(zip(head.parts, blobs, strict=True)), entries))
        return twin.cursors.facts()

    def teardown(self) -> None:
        self.driver.run()
        self.driver.pass_time(60_000)
        self.driver.run()
        self.check()
        found = sorted(name for name, _, _ in self.in_store() if name in NAMES)
        assert found == sorted(self.current), "what exists in the end is what was asked for last"


@pytest.mark.guarantee("G1", section="4.3")
def test_a_cursor_created_again_keeps_nothing_of_the_old() -> None:
    run_machine(
        CursorMachine,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
