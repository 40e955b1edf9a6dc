"""A driver of cores performs every instruction there is, and takes one that it does not know for an error."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from millwheel.authority.core import Effects
from millwheel.authority.shell import AuthorityShell
from millwheel.client.injector.messages import Instruction as InjectorInstruction
from millwheel.client.injector.session import InjectorSession
from millwheel.master.messages import Instruction as MasterInstruction
from millwheel.master.term import Term
from millwheel.store.memory import MemoryStore
from millwheel.testing.cores import PERFORMERS, CoreDriver
from millwheel.worker.log.messages import LogInstruction
from millwheel.worker.messages import Instruction
from millwheel.worker.shell.log_service import LogService
from tests.authority.shard import Shard
from tests.injectors import test_core_model
from tests.interval import world
from tests.master.harness import Master
from tests.worker.test_host import Rig

NOBODY: Any = None


class Unknown:
    """An instruction that a core might be given one day."""


def names_in(function: Any) -> set[str]:
    """All names and attributes that a function's source mentions."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }


def test_the_harness_performs_every_instruction_of_an_interval_core() -> None:
    assert PERFORMERS.keys() == set(get_args(Instruction))


def test_the_interval_model_performs_every_instruction_of_an_interval_core() -> None:
    assert set(get_args(Instruction)) <= world._PERFORM.keys()


async def test_a_host_performs_every_instruction_of_an_interval_core_and_of_a_log() -> None:
    performed = Rig().host._performers.keys() | LogService(lambda stream, log: None).performers().keys()
    assert performed == set(get_args(LogInstruction))
    assert set(get_args(Instruction)) <= performed


@pytest.mark.parametrize(
    ("performer", "instructions"),
    [
        (Term._perform, MasterInstruction),
        (Master.step, MasterInstruction),
        (InjectorSession._perform, InjectorInstruction),
        (test_core_model.InjectorMachine.perform, InjectorInstruction),
    ],
)
def test_a_driver_names_every_instruction(performer: Any, instructions: Any) -> None:
    assert {one.__name__ for one in get_args(instructions)} <= names_in(performer)


@pytest.mark.parametrize("performer", [AuthorityShell._perform, Shard.perform])
def test_a_driver_of_an_authority_performs_every_effect(performer: Any) -> None:
    assert {field.name for field in fields(Effects)} <= names_in(performer)


def test_the_harness_refuses_an_instruction_that_it_does_not_know() -> None:
    with pytest.raises(TypeError, match="journal j: nothing performs the instruction"):
        CoreDriver(MemoryStore(), 0, NOBODY).perform("j", Unknown())


async def test_a_host_gives_its_core_up_for_an_instruction_that_it_does_not_know() -> None:
    rig = Rig()
    await rig.perform(Unknown())
    assert (
        rig.host.fault
        == "internal error: TypeError: nothing performs the instruction Unknown: CoreHost, or extra=, has to"
    )


@pytest.mark.parametrize("performer", [Term._perform, InjectorSession._perform])
def test_a_term_and_a_session_refuse_an_instruction_that_they_do_not_know(performer: Any) -> None:
    with pytest.raises(AssertionError, match="Unknown object"):
        performer(SimpleNamespace(is_open=True), [Unknown()])
