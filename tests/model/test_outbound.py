"""What senders keep until it is ACKed, against models that keep each record by itself (6.1.1)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millwheel.model.outbound import (
    AnswerKind,
    DeliveryAttempt,
    OutboundBatch,
    OutstandingAttempts,
    UnackedBatches,
    answer_kind,
)
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1 import delivery_pb2 as wire

ACKED, FULL = AnswerKind.ACKED, AnswerKind.FULL
INDEXES = st.lists(st.integers(0, 7), max_size=8)


class NaiveAttempt:
    """Every record is open, acked or refused; an answer is applied to one record after the other."""

    def __init__(self, records: int) -> None:
        self.states = ["open"] * records

    def answered(self, kind: AnswerKind, indexes: Sequence[int]) -> set[int]:
        settled = set()
        for index, state in enumerate(self.states):
            if state != "open":
                continue
            if kind is ACKED:
                new = "open" if index in indexes else "acked"
            elif kind is FULL and indexes:
                new = "refused" if index in indexes else "open"
            else:
                new = "refused"
            self.states[index] = new
            if new != "open":
                settled.add(index)
        return settled


@given(st.integers(1, 6), st.lists(st.tuples(st.sampled_from(AnswerKind), INDEXES), max_size=6))
def test_an_answer_settles_the_same_records_as_one_by_one(
    records: int, answers: list[tuple[AnswerKind, list[int]]]
) -> None:
    attempt, naive = DeliveryAttempt(records), NaiveAttempt(records)
    for kind, indexes in answers:
        assert set(attempt.answered(kind, indexes)) == naive.answered(kind, indexes)
        assert set(attempt.unanswered()) == {index for index, state in enumerate(naive.states) if state == "open"}
        assert attempt.over == ("open" not in naive.states)


@given(st.integers(1, 6), st.sets(st.integers(0, 5)), st.lists(st.sets(st.integers(0, 5)), max_size=4))
def test_the_last_answer_is_known_as_such_for_every_receiver(
    count: int, refused: set[int], rounds: list[set[int]]
) -> None:
    """The model answers as receivers do.

    It refuses some records first. Then it ACKs committed ones and names all others.
    """
    refused &= set(range(count))
    outstanding = OutstandingAttempts[str]()
    outstanding.add(1, count, "one")
    open_records = set(range(count)) - refused
    if refused:
        assert outstanding.answered(1, FULL, sorted(refused)) == "one"
        assert (1 in outstanding) == bool(open_records)
    for committed in [*rounds, open_records]:
        if not open_records:
            break
        open_records = open_records - committed
        assert outstanding.answered(1, ACKED, sorted(open_records | refused)) == "one"
        assert (1 in outstanding) == bool(open_records)
    assert 1 not in outstanding
    assert len(outstanding) == 0


def test_other_answers_end_a_sending_and_unknown_tokens_do_not() -> None:
    outstanding = OutstandingAttempts[int]()
    for token, kind in enumerate([AnswerKind.REFUSED, AnswerKind.INVALID, AnswerKind.SUPERSEDED, FULL]):
        outstanding.add(token, 3, token)
        assert token in outstanding
        assert outstanding.answered(token, kind, ()) == token
    assert outstanding.answered(99, ACKED, ()) is None
    assert len(outstanding) == 0


@pytest.mark.guarantee("G1")
def test_unanswered_batches_of_an_ended_stream_are_sent_again() -> None:
    outstanding = OutstandingAttempts[str]()
    for token, name in enumerate("abc"):
        outstanding.add(token, 2, name)
    outstanding.answered(1, ACKED, ())
    outstanding.answered(2, ACKED, [1])
    assert outstanding.clear() == ["a", "c"]
    assert len(outstanding) == 0


@pytest.mark.parametrize("name", wire.DeliveryOutcome.keys())
def test_every_outcome_has_its_meaning(name: str) -> None:
    """A new outcome needs a line here, and a decision of what senders do."""
    meaning = {
        "ACKED": ACKED,
        "REFUSED_FULL": FULL,
        "NOT_OWNER": AnswerKind.REFUSED,
        "NO_COLUMNS": AnswerKind.REFUSED,
        "OUT_OF_ORDER": AnswerKind.REFUSED,
        "REFUSED_SEQUENCER": AnswerKind.SUPERSEDED,
        "INVALID": AnswerKind.INVALID,
        "UNSPECIFIED": AnswerKind.INVALID,
    }
    assert answer_kind(wire.DeliveryOutcome.Value(name)) is meaning[name.removeprefix("DELIVERY_OUTCOME_")]


class UnackedMachine(RuleBasedStateMachine):
    """Batches are added, ACKed in parts and given up. The model keeps each record by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.unacked = UnackedBatches[OutboundBatch]()
        self.batches: list[OutboundBatch] = []
        self.records: list[dict[int, int]] = []
        """By batch: the timestamps of its un-ACKed records, by index."""

    @rule(stamps=st.lists(st.integers(0, 20), min_size=1, max_size=6))
    def add(self, stamps: list[int]) -> None:
        batch = OutboundBatch()
        batch.keys, batch.values, batch.timestamps = [b"k"] * len(stamps), [b"v"] * len(stamps), stamps
        batch.bytes = 2 * len(stamps)
        batch.measure()
        self.unacked.add(batch)
        self.batches.append(batch)
        self.records.append(dict(enumerate(stamps)))

    @rule(at=st.integers(0, 9), answer=st.sets(st.integers(0, 7)), names_acked=st.booleans())
    def acknowledge(self, at: int, answer: set[int], names_acked: bool) -> None:
        """``names_acked``: whether the answer names the ACKed records, or those that are left."""
        if not self.batches:
            return
        at %= len(self.batches)
        batch, left = self.batches[at], self.records[at]
        if names_acked:
            answer &= set(range(len(batch.keys)))
        for index in list(left):
            if (index in answer) == names_acked:
                del left[index]
        assert self.unacked.acknowledge(batch, batch.without(answer) if names_acked else answer) == (not left)
        assert list(batch.indexes()) == sorted(left)
        assert batch.count() == len(left)
        if not left:
            self.remove(at)

    @rule(at=st.integers(0, 9))
    def give_up(self, at: int) -> None:
        if self.batches:
            self.remove(at % len(self.batches))

    def remove(self, at: int) -> None:
        self.unacked.remove(self.batches.pop(at))
        del self.records[at]

    @rule(at=st.integers(0, 9), size=st.integers(1, 50))
    def resize(self, at: int, size: int) -> None:
        if self.batches:
            batch = self.batches[at % len(self.batches)]
            before, batch.bytes = batch.bytes, size
            self.unacked.resized(batch, before)

    @invariant()
    def totals_are_those_of_the_records(self) -> None:
        stamps = [stamp for left in self.records for stamp in left.values()]
        assert self.unacked.records == len(stamps)
        assert self.unacked.bytes == sum(batch.bytes for batch in self.batches)
        assert self.unacked.held.min() == min(stamps, default=MAX_TIMESTAMP)
        assert len(self.unacked.held) == len(self.batches)


TestUnackedBatches = UnackedMachine.TestCase
