"""Ids of records: which ids a receiver keeps, for how long, and what senders state about them (section 6.1.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.admission import DeliveryAdmission
from millwheel.worker.dedup import Dedup
from millwheel.worker.dedup.batches import BatchQuery
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.results import CheckOutcome
from millwheel.worker.interval.outbox.outbox import Outbox
from simulation.mutations.base import mutation, replace, rewrite

__all__: list[str] = []


@mutation("G1", "positions that are committed are remembered until the sender's mark has passed them")
def forgotten_ids() -> None:
    """Positions are forgotten as soon as they are committed; the receiver keeps only the senders' ACK marks."""
    replace(PositionSource, "remember", lambda _: lambda self, positions: None)


@mutation("G1", "a sender's mark passes nothing that is not ACKed")
def high_marks() -> None:
    """Senders state that all of their committed productions are ACKed."""

    def statement(self: Outbox, consumer: str, otherwise: int, stuck_below: int) -> tuple[int, list[int]]:
        return otherwise, []

    replace(Outbox, "statement", lambda _: statement)


@mutation("G1", "an opaque id is kept until its sender can send it no more")
def ids_collected_early() -> None:
    """Opaque ids are deleted at the first watermark that arrives after their commit."""

    def make(remember: Any) -> Any:
        return lambda self, collect, ids: remember(self, MIN_TIMESTAMP, ids)

    replace(OpaqueSource, "remember", make)


@mutation("G1", "a copy of a record that is not committed yet is not ACKed")
def copies_acked() -> None:
    """A duplicate of a record that waits for its commit is ACKed at once."""

    def make(admit: Any) -> Any:
        return lambda self, delivery, verdict, fresh, waiting, out: admit(self, delivery, verdict, fresh, (), out)

    replace(DeliveryAdmission, "admit", make)


@mutation(
    "G3",
    "a sender with a successor is refused",
    seeds=10,
    test="tests/worker/dedup/test_scenarios.py::test_collection_learns_the_broadcasts_sequencers_first",
    why="what a deposed sender has in its buffers is known as long as marks and ids are",
)
def deposed_senders_accepted() -> None:
    """Deliveries are admitted by their ids alone, with any sequencer of their sender."""
    rewrite(Dedup, "known.highest(sender.group, span) > sender.sequencer", "False")


@mutation(
    "G1",
    "a sequence of which nothing is known is looked up before it is taken",
    seeds=10,
    test="tests/worker/dedup/test_scenarios.py::test_a_retired_sequence_is_asked_for_and_not_taken",
    why="a journal is retired when all it sent was ACKed: a copy must lie in a buffer for all that time",
)
def unknown_sequences_taken() -> None:
    """Records of an unknown sequence are admitted as new."""

    def make(check: Any) -> Any:
        def trusting(self: Dedup, ids: Any, *rest: Any) -> Any:
            verdict = check(self, ids, *rest)
            if verdict.outcome is CheckOutcome.UNKNOWN_SEQUENCE:
                self.admit(ids.sequence)
                verdict = check(self, ids, *rest)
            return verdict

        return trusting

    replace(Dedup, "check", make)


@mutation(
    "G1",
    "what a filter may be wrong about is read from the store",
    seeds=0,
    test="tests/worker/dedup/test_scenarios.py::test_an_id_that_only_the_filters_take_for_known_is_fresh",
    why="a filter is wrong once in 100,000 times",
)
def filters_taken_for_truth() -> None:
    """An id that a filter contains counts as a duplicate."""
    rewrite(OpaqueSource, "found[id_] = unread", "found[id_] = None")


@mutation("G1", "a batch below the query's completed batch is a duplicate")
def floorless_batches() -> None:
    """Batches are admitted by the ids that are still stored."""

    def make(check: Any) -> Any:
        def floorless(self: BatchQuery, batch: int, ids: Sequence[bytes], verdict: Any) -> Any:
            completed, self.completed = self.completed, None
            try:
                return check(self, batch, ids, verdict)
            finally:
                self.completed = completed

        return floorless

    replace(BatchQuery, "check", make)
