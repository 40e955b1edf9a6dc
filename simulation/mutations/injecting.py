"""Injectors: their watermark promises, and the ids of their records (sections 5.2, 6.1.1)."""

from __future__ import annotations

import random
from typing import Any

from millwheel.client.injector import Injector
from millwheel.client.injector.admission import RecordAdmission
from millwheel.client.injector.declared_types import DeclaredTypes
from millwheel.client.injector.ids import IdHasher
from millwheel.client.injector.publication import Publication
from millwheel.client.injector.record_keys import RecordKeys
from millwheel.client.injector.rerouting import Rerouting
from millwheel.client.injector.resend_policy import ResendingQueues
from millwheel.client.injector.unkeyed import UnkeyedRecords
from millwheel.client.watermarks import WatermarkClient
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.worker.process.preparing import RecordPreparer
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation("G7", "an injector's watermark waits for the ACKs of its records")
def promised_unacked() -> None:
    """An injector publishes its declared watermark, whether or not its records have arrived."""

    def make(update: Any) -> Any:
        def without(self: Publication) -> Any:
            oldest, self.oldest_unacked = self.oldest_unacked, MAX_TIMESTAMP
            try:
                return update(self)
            finally:
                self.oldest_unacked = oldest

        return without

    replace(Publication, "update", make)


@mutation("G8", "an injector says when its stream has ended")
def endless() -> None:
    """An injector does not report its end."""

    async def finish(self: Injector, timeout: float | None = None) -> None:
        await self.flush(timeout)

    replace(Injector, "finish", lambda _: finish)


@mutation("G1", "a record that is injected again has the id that it had")
def injected_ids_anew() -> None:
    """The ids of injected records change with each incarnation of their process."""

    def make(init: Any) -> Any:
        def salted(self: IdHasher, stream: str, source: str) -> None:
            init(self, stream, f"{source}/{random.random()}")

        return salted

    replace(IdHasher, "__init__", make)


@mutation(
    "G1",
    "a record that its readers left behind is not taken for one that is in",
    seeds=0,
    test="tests/injectors/test_core.py::test_records_that_ended_readers_left_are_not_reported_as_in",
    why="a process must stand still from before a topology's drain until after it, with a record on its way",
)
def left_reported_in() -> None:
    """Records that ended consumers had not ACKed are dropped, as if they were ACKed."""
    replace(Rerouting, "left_behind", lambda _: lambda self, routing, accepted: None)


@mutation(
    "G8",
    "a record that no reader could decode is refused before it is sent",
    seeds=0,
    test="tests/injectors/test_checking.py::test_a_record_no_worker_could_decode_is_an_error_of_send",
    why="simulated programs send records of the declared type only",
)
def types_unchecked() -> None:
    """A record of any type is sent, and holds the watermark at the computation where it fails."""
    replace(DeclaredTypes, "decoder", lambda _: lambda self, routing: None)


@mutation("G1", "an injector sends again what was on its way when a connection broke")
def not_sent_again() -> None:
    """Records in flight on a broken or unresponsive connection count as arrived."""
    again = "self._end(attempt)\n    attempt.batch.resume_at = 0\n    self._require(attempt.batch, attempt.open())"
    rewrite(ResendingQueues, again, "self.acked(attempt, ())")


@mutation(
    "G7",
    "a process that wakes or finishes goes on when its report of it is in the authority's journal",
)
def settled_unheard() -> None:
    """Any answer of the authority counts as the answer to the last report."""

    def make(accept: Any) -> Any:
        async def accepted(self: WatermarkClient, *arguments: Any, report_number: int = 0) -> Any:
            return await accept(self, *arguments)

        return accepted

    replace(WatermarkClient, "accept", make)


@mutation(
    "G1",
    "a record that waits for its key is not overtaken by those behind it",
    seeds=0,
    test="tests/injectors/test_core.py::test_nothing_overtakes_a_record_that_waits_for_its_key",
    why="the topologies of simulated runs are keyed by fields that every record has",
)
def keyless_overtaken() -> None:
    """Records behind one that waits for its key are sent before it."""
    replace(UnkeyedRecords, "blocked", lambda _: lambda self, consumer, scope: False)


@mutation(
    "G8",
    "a worker learns of records that wait for keys which the injector itself does not find",
    seeds=0,
    test="tests/injectors/test_keying.py::test_a_worker_is_notified_of_a_record_without_a_local_key",
    why="the topologies of simulated runs are keyed by fields that every record has",
)
def keyless_unreported() -> None:
    """An injector that extracts keys itself does not report records without a key."""
    rewrite(RecordKeys.of_waiting, "encoded = encoded[:1]", "return column")


@mutation(
    "G1",
    "a record that waits for the routing to be read again is not overtaken by those behind it",
    seeds=0,
    test="tests/injectors/test_fetches.py::test_nothing_overtakes_a_record_that_waits_for_a_fetch",
    why="simulated injectors are cores without the calls of users",
)
def looks_out_of_turn() -> None:
    """A look at the routing keeps no later call from sending."""
    rewrite(RecordAdmission, "if refused is not None and not in_turn:", "if False:")


@mutation(
    "G8",
    "a worker knows that a process has records without keys until all its queues have them",
    seeds=0,
    test="tests/injectors/test_retries.py::test_a_process_waits_while_another_of_its_queues_does",
    why="the topologies of simulated runs are keyed by fields that every record has",
)
def waiting_forgotten() -> None:
    """The keys of one queue are taken for the keys of all."""
    rewrite(RecordPreparer.prepare, "and request.last_waiting and", "and")
