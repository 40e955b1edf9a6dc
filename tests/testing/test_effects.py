"""Every driver of a core performs all effects. An unknown effect is an error.

Drivers match effects exhaustively, so mypy finds one that does not know an effect. These tests hold what mypy does not
see: that a match is there, that an unknown effect is an error at run time, and that a core knows every event.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from millwheel.authority.messages import AuthorityEffect
from millwheel.authority.shard import AuthorityShard
from millwheel.client.injector.messages import InjectorEffect
from millwheel.client.injector.session import InjectorSession
from millwheel.master.messages import MasterEffect
from millwheel.master.term import Term
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.store.memory import MemoryStore
from millwheel.testing.cores import CoreDriver
from millwheel.testing.store_effects import perform_at_store
from millwheel.worker.log.messages import EndSubscription, LogEvent
from millwheel.worker.messages import Delivery, IntervalEvent
from millwheel.worker.process.hook_reports import HookReports
from millwheel.worker.process.log_service import LogService
from tests.authority.shard import Shard
from tests.injectors import test_core_model
from tests.kept import kept
from tests.master.harness import Master
from tests.worker.interval.driver import IntervalDriver
from tests.worker.interval.test_takeover import Waiting
from tests.worker.log.driver import LogDriver
from tests.worker.test_host import Rig

UNUSED: Any = None
SHARD, TERM, SESSION = AuthorityShard.perform, Term.perform, InjectorSession.perform


class Unknown:
    """An effect that no driver knows."""


UNKNOWN: Any = Unknown()


def names_in(function: Any) -> set[str]:
    """All names and attributes that a function's source mentions."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }


def events_of(core: object) -> set[type]:
    """The events that a core processes: the keys of its table of handlers. An unknown event is not sent on purpose."""
    (handlers,) = (one for one in kept(core, dict) if Delivery in one)
    return set(handlers)


def test_an_interval_core_knows_every_event_of_an_interval() -> None:
    assert events_of(IntervalDriver(Waiting()).core) == set(get_args(IntervalEvent))


def test_a_log_core_knows_every_event_of_a_log() -> None:
    assert events_of(LogDriver().core) == set(get_args(LogEvent))


@pytest.mark.parametrize(
    ("performer", "effects"),
    [
        (SHARD, AuthorityEffect),
        (Shard.begin, AuthorityEffect),
        (TERM, MasterEffect),
        (Master.finish, MasterEffect),
        (SESSION, InjectorEffect),
        (test_core_model.InjectorMachine.begin, InjectorEffect),
    ],
)
def test_a_driver_names_every_effect(performer: Any, effects: Any) -> None:
    assert {one.__name__ for one in get_args(effects)} <= names_in(performer)


def _harness() -> None:
    CoreDriver(MemoryStore(), 0, UNUSED).perform("j", UNKNOWN)


def _log_driver() -> None:
    driver = LogDriver()
    driver.perform([UNKNOWN])
    driver.run()


@pytest.mark.parametrize(
    "perform",
    [
        lambda: perform_at_store(MemoryStore(), UNKNOWN),
        lambda: LogService(lambda stream, log: None).perform(UNKNOWN),
        lambda: HookReports(0.0, lambda scope: None).take(("topology", "computation"), UNKNOWN),
        lambda: Shard().perform([UNKNOWN]),
        _harness,
        _log_driver,
    ],
)
def test_a_driver_refuses_an_effect_that_it_does_not_know(perform: Any) -> None:
    with pytest.raises(AssertionError, match="Unknown object"):
        perform()


async def test_a_host_gives_its_core_up_for_an_unknown_effect() -> None:
    rig = Rig()
    await rig.perform(Unknown())
    assert rig.host.fault.startswith("internal error: AssertionError: Expected code to be unreachable, but got: <")
    assert "Unknown object" in rig.host.fault


async def test_a_host_without_subscribers_gives_up_on_their_effects() -> None:
    rig = Rig()
    await rig.perform(EndSubscription(object(), RequestError(FailureCode.UNAVAILABLE, "it ends")))
    assert rig.host.fault == (
        "internal error: TypeError: EndSubscription is an effect of a stream log, and this host has no subscribers"
    )


@pytest.mark.parametrize("performer", [SHARD, TERM, SESSION])
def test_drivers_of_the_other_cores_refuse_an_unknown_effect(performer: Any) -> None:
    with pytest.raises(AssertionError, match="Unknown object"):
        performer(SimpleNamespace(is_open=True), [UNKNOWN])
