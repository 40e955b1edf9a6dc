"""Interval cores in a hostile world, compared with a model that knows no failures (G1, G5, G6, G8, G10, G12).

Hypothesis chooses what happens next: records, watermarks, time, which task is performed, lost or repeated,
who crashes or becomes a zombie. When it has had enough everything heals, must come to rest, and every
record must count exactly once.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millwheel.model.time import MAX_TIMESTAMP
from tests.interval.checks import check_counts, check_quiet, check_soft_state
from tests.interval.programs import Event, Outside, topology
from tests.interval.world import World

KEYS = ["a", "b", "m", "z"]
GROUPS = ["g", "p"]
KINDS = ["plain", "plain", "plain", "flaky", "poison", "wall"]


class HostileWorld(RuleBasedStateMachine):
    strong: ClassVar[bool] = True
    waiting: ClassVar[bool] = False
    late: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.outside = Outside(on_time=not self.late)
        made = topology(self.outside, strong=self.strong, waiting=self.waiting)
        self.world = World(made, {"mapper": ["k"], "counter": ["h"]})
        self.events: list[Event] = []

    @rule(
        records=st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from(GROUPS), st.sampled_from(KINDS), st.integers(0, 40)),
            min_size=1,
            max_size=5,
        )
    )
    def inject(self, records: list[tuple[str, str, str, int]]) -> None:
        made = []
        for key, group, kind, ahead in records:
            at = max(0, self.world.declared) + ahead - (20 if self.late else 0)
            event = Event(len(self.events), key, group, kind, at)
            self.events.append(event)
            made.append((event, at))
        self.world.inject(made)

    @rule(by=st.integers(1, 25))
    def advance_watermark(self, by: int) -> None:
        self.world.advance(max(0, self.world.declared) + by)

    @rule(by=st.integers(1, 60))
    def advance_clock(self, by: int) -> None:
        self.world.now += by
        self.world.ring()

    @rule(choices=st.lists(st.tuples(st.integers(0, 1 << 16), st.sampled_from("pppppplr")), min_size=1, max_size=40))
    def perform(self, choices: list[tuple[int, str]]) -> None:
        for number, how in choices:
            if self.world.tasks:
                self.world.perform(number % len(self.world.tasks), lose=how == "l", repeat=how == "r")

    @rule(count=st.integers(1, 30))
    def perform_in_order(self, count: int) -> None:
        for _ in range(min(count, len(self.world.tasks))):
            if self.world.tasks:
                self.world.perform(0)

    @rule(which=st.integers(0, 3), zombie=st.booleans())
    def crash(self, which: int, zombie: bool) -> None:
        journals = sorted(self.world.current)
        self.world.crash(journals[which % len(journals)], zombie=zombie)

    @invariant()
    def soft_state_is_what_a_takeover_reads(self) -> None:
        check_soft_state(self.world)

    def teardown(self) -> None:
        self.world.resend_injected()
        self.world.advance(MAX_TIMESTAMP)
        self.world.settle()
        check_soft_state(self.world)
        check_quiet(self.world)
        check_counts(self.world, self.outside, self.events)
        before = list(self.world.out)
        for delivery in self.world.sent:
            self.world.unacked[delivery.token] = delivery
        self.world.resend_injected()
        self.world.settle()
        check_quiet(self.world)
        check_counts(self.world, self.outside, self.events)
        assert self.world.out == before


class WeakWorld(HostileWorld):
    strong = False


class WaitingWorld(HostileWorld):
    waiting = True


class WeakWaitingWorld(HostileWorld):
    strong = False
    waiting = True


class LateWorld(HostileWorld):
    late = True


class LateWeakWorld(HostileWorld):
    late = True
    strong = False


_SETTINGS = settings(max_examples=25, stateful_step_count=30, suppress_health_check=list(HealthCheck))

TestStrongProductions = pytest.mark.guarantee("G1", section="6.1.1")(HostileWorld.TestCase)
TestWeakProductions = pytest.mark.guarantee("G10", section="6.1.3")(WeakWorld.TestCase)
TestAsynchronousHooks = pytest.mark.guarantee("G5", section="4.1")(WaitingWorld.TestCase)
TestWeakAsynchronousHooks = pytest.mark.guarantee("G10", section="6.1.3")(WeakWaitingWorld.TestCase)
TestLateRecords = pytest.mark.guarantee("G14", section="4.5")(LateWorld.TestCase)
TestLateWeakRecords = pytest.mark.guarantee("G14", section="6.1.3")(LateWeakWorld.TestCase)
for machine in (HostileWorld, WeakWorld, WaitingWorld, WeakWaitingWorld, LateWorld, LateWeakWorld):
    machine.TestCase.settings = _SETTINGS
