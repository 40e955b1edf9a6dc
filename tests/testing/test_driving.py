"""The driver that the tests of all cores share: time, deadlines, answers and invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from millwheel.model.core_protocol import InvariantError, Tick, require
from tests.driving import SingleCoreDriver


@dataclass(frozen=True)
class Ask:
    """An effect that an ``Answer`` answers."""

    number: int
    at_once: bool = False


@dataclass(frozen=True)
class Answer:
    number: int


class Alarms:
    """Sets each of its alarms once, at its time. ``rings`` has the events and their times."""

    def __init__(self, *alarms: int, stuck: bool = False) -> None:
        self.alarms = list(alarms)
        self.stuck = stuck
        self.sound = True
        self.rings: list[tuple[object, int]] = []

    def step(self, event: Answer | Tick, now: int) -> Sequence[Ask]:
        self.rings.append((event, now))
        if isinstance(event, Answer) or self.stuck:
            return []
        return [Ask(self.alarms.pop(0)), Ask(0, at_once=True)] if self.alarms and self.alarms[0] <= now else []

    def next_deadline(self) -> int | None:
        return self.alarms[0] if self.alarms else None

    def check_invariants(self) -> None:
        require(self.sound, "it is sound")


class Answering(SingleCoreDriver[Answer, Ask]):
    def __init__(self, core: Alarms) -> None:
        super().__init__()
        self.core = core

    def begin(self, effect: Ask) -> Answer | None:
        return Answer(effect.number) if effect.at_once else super().begin(effect)

    def finish(self, effect: Ask) -> Answer | None:
        return Answer(effect.number)


def test_deadlines_come_in_time_and_answers_after_all_effects() -> None:
    core = Alarms(10, 30, 70)
    driver = Answering(core)
    driver.pass_time(50)
    assert core.rings == [(Tick(), 10), (Answer(0), 10), (Tick(), 30), (Answer(0), 30)]
    assert (driver.now, driver.waiting) == (50, [Ask(10), Ask(30)])
    driver.step(1)
    assert driver.take(Ask) == [Ask(10)]
    assert core.rings[4:] == [(Answer(30), 50)]
    driver.pass_time(50)
    driver.run()
    assert core.rings[5:] == [(Tick(), 70), (Answer(0), 70), (Answer(70), 100)]


def test_a_deadline_that_stays_after_its_tick_is_an_error() -> None:
    with pytest.raises(AssertionError, match="the deadline at 10 stays"):
        Answering(Alarms(10, stuck=True)).pass_time(10)


def test_an_effect_that_nothing_performs_is_an_error() -> None:
    driver: SingleCoreDriver[Answer, Ask] = SingleCoreDriver()
    driver.core = Alarms(10)
    driver.handle(Tick(), 10)
    with pytest.raises(AssertionError, match="does not perform Ask"):
        driver.step()


def test_invariants_are_checked_after_every_event() -> None:
    core = Alarms()
    core.sound = False
    with pytest.raises(InvariantError, match="it is sound"):
        Answering(core).handle(Tick())
