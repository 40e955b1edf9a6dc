"""Injectors: what they promise, and under which ids they send (section 5.2, 6.1.1)."""

from __future__ import annotations

import random
from typing import Any

from millwheel.client.injector import Injector
from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.ids import IdHasher
from millwheel.client.injector.publication import Publication
from millwheel.client.injector.sending import Sending
from millwheel.client.injector.unkeyed import UnkeyedRecords
from millwheel.client.watermarks import WatermarkClient
from millwheel.core.time import MAX_TIMESTAMP
from simulation.mutations.base import mutation, replace

__all__: list[str] = []


@mutation("G7", "an injector's watermark waits for the ACKs of its records")
def promised_unacked() -> None:
    """An injector publishes what was declared, whether or not its records have arrived."""
    replace(Publication, "update", lambda update: lambda self, oldest: update(self, MAX_TIMESTAMP))


@mutation("G8", "an injector says when its stream has ended")
def endless() -> None:
    """An injector's end is told to nobody."""

    async def finish(self: Injector, timeout: float | None = None) -> None:
        await self.flush(timeout)

    replace(Injector, "finish", lambda _: finish)


@mutation("G1", "a record that is injected again has the id that it had")
def injected_ids_anew() -> None:
    """The ids of injected records change with each life of their process."""

    def make(init: Any) -> Any:
        def salted(self: IdHasher, stream: str, source: str) -> None:
            init(self, stream, f"{source}/{random.random()}")

        return salted

    replace(IdHasher, "__init__", make)


@mutation(
    "G1",
    "a record that its readers left behind is not taken for one that is in",
    seeds=0,
    test="tests/injectors/test_core.py::test_g1_what_ended_readers_did_not_take_is_not_told_to_be_in_5_2",
    why="a process must stand still from before a topology's drain until after it, with a record on its way",
)
def left_told_in() -> None:
    """What the readers of a stream had not ACKed when they ended is forgotten, as if it were in."""
    replace(InjectorCore, "_left", lambda _: lambda self, routing: None)


@mutation("G1", "an injector sends again what was on its way when a connection broke")
def not_sent_again() -> None:
    """What was on its way when a connection broke, or had no answer for long, counts as arrived."""

    def bring_back(self: Sending, flight: Any) -> None:
        self.acked(flight, ())

    replace(Sending, "_bring_back", lambda _: bring_back)


@mutation(
    "G7",
    "a process that wakes or finishes goes on when its report of it is in the authority's journal",
)
def settled_unheard() -> None:
    """Any answer of the authority's is taken for one to the report that came before the question."""

    def make(accept: Any) -> Any:
        async def accepted(self: WatermarkClient, *told: Any, report_number: int = 0) -> Any:
            return await accept(self, *told)

        return accepted

    replace(WatermarkClient, "accept", make)


@mutation(
    "G1",
    "a record that waits for its key is not overtaken by those behind it",
    seeds=0,
    test="tests/injectors/test_core.py::test_g1_nothing_overtakes_a_record_that_waits_for_its_key_6_1_1",
    why="the topologies of simulated runs are keyed by fields that every record has",
)
def keyless_overtaken() -> None:
    """Records behind one that waits for its key are sent before it."""
    replace(UnkeyedRecords, "blocked", lambda _: lambda self, consumer, scope: False)
