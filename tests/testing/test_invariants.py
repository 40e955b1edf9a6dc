"""Each core's check of its invariants finds a state that contradicts one, and the simulation reports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel.model.core_protocol import InvariantError, Tick
from millwheel.model.keys import ALL_KEYS
from simulation.taps import Taps
from tests.authority.shard import Shard
from tests.injectors.test_core import add, opened
from tests.master.harness import Cluster as MasterCluster
from tests.master.harness import Master
from tests.worker.interval.driver import IntervalDriver
from tests.worker.interval.test_takeover import Waiting
from tests.worker.log.driver import LogDriver


def interval() -> tuple[Any, Callable[[], None]]:
    driver = IntervalDriver(Waiting())
    driver.deliver(("key", "", 1))

    def spoil() -> None:
        driver.state.intake.records += 1

    return driver.core, spoil


def log() -> tuple[Any, Callable[[], None]]:
    driver = LogDriver()
    driver.deliver([b"a"], [1])

    def spoil() -> None:
        driver.core.state.journaled_watermark = driver.core.state.watermark + 1

    return driver.core, spoil


def injector() -> tuple[Any, Callable[[], None]]:
    core = opened()
    add(core, [1])

    def spoil() -> None:
        core.accepted -= 1

    return core, spoil


def master() -> tuple[Any, Callable[[], None]]:
    core = Master(MasterCluster()).core

    def spoil() -> None:
        core.catalog.revision -= 1

    return core, spoil


def authority() -> tuple[Any, Callable[[], None]]:
    shard = Shard()
    shard.own_all()
    shard.report(ALL_KEYS, 1, 10)

    def spoil() -> None:
        shard.core.commit -= 1

    return shard.core, spoil


CORES = [interval, log, injector, master, authority]


@pytest.mark.parametrize("made", CORES)
def test_a_contradiction_is_found(made: Callable[[], tuple[Any, Callable[[], None]]]) -> None:
    core, spoil = made()
    core.check_invariants()
    spoil()
    with pytest.raises(InvariantError):
        core.check_invariants()


@pytest.mark.parametrize("made", CORES)
def test_the_simulation_reports_it_after_the_next_event(made: Callable[[], tuple[Any, Callable[[], None]]]) -> None:
    core, spoil = made()
    violations: list[str] = []
    with Taps().listening(violations.append):
        core.step(Tick(), 2_000_000)
        assert violations == []
        spoil()
        core.step(Tick(), 2_000_000)
    (violation,) = violations
    assert violation.startswith(f"{type(core).__name__} after Tick: ")
