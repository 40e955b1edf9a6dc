"""Batch ids against a naive model: speculative tasks, replayed batches, receivers that crash, split and merge."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from millwheel.worker.dedup import BatchIds, Sender
from millwheel.worker.dedup.batches import BatchQuery
from millwheel.worker.dedup.results import CheckOutcome, DeliveryVerdict
from simulation.held_ids import pending_ids, seen_ids
from tests.worker.dedup.receivers import Copy, ReceiverRules, Record, chosen, keys, subset


def _id(record: Record) -> bytes:
    # The ids of a batch need only be unique within it: the number of the batch is left out on purpose.
    return hashlib.blake2b(str(record.identity[1]).encode(), digest_size=16).digest()


class BatchesModel(ReceiverRules):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Record]] = [[]]
        self.unacked: set[Record] = set()

    @rule(record_keys=st.lists(keys, max_size=6))
    def next_batch(self, record_keys: list[bytes]) -> None:
        """A batch begins when all of the one before is ACKed."""
        if not self.unacked:
            number = len(self.batches)
            self.batches.append([Record((number, index), key) for index, key in enumerate(record_keys)])
            self.unacked = set(self.batches[-1])

    @rule(bits=subset, arrives=st.booleans())
    def task_sends(self, bits: int, arrives: bool) -> None:
        """Any attempt of a task of the batch: rows in any grouping."""
        self._send(len(self.batches) - 1, chosen(self.batches[-1], bits), arrives)

    @rule(old=st.integers(1, 5), bits=subset)
    def old_batch_is_replayed(self, old: int, bits: int) -> None:
        number = max(0, len(self.batches) - 1 - old)
        self._send(number, chosen(self.batches[number], bits), True)

    def _send(self, number: int, records: list[Record], arrives: bool) -> None:
        for receiver in self.receivers.all:
            due = [record for record in records if record.key in receiver.interval]
            ids = BatchIds("query", number, [_id(record) for record in due])
            sender = Sender("injector/in/spark", 1, None, "injector/in")
            self.send(Copy(receiver.journal, ids, due, sender, self.unacked.discard), arrives)

    def teardown(self) -> None:
        for _ in range(2):
            self._send(len(self.batches) - 1, list(self.unacked), True)
            self.receivers.run()
        assert not self.unacked, "a record is never ACKed"
        for batch in self.batches:
            for record in batch:
                assert self.model.effects.get(record.identity) == 1, "a record was lost"
        for receiver in self.receivers.all:
            assert seen_ids(receiver.dedup) <= max(map(len, self.batches)), "ids of old batches are kept"
            assert pending_ids(receiver.dedup) == 0


BatchesModel.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestBatchesExactlyOnce = pytest.mark.guarantee("G1", section="6.1.1")(BatchesModel.TestCase)


def test_an_id_that_is_twice_in_a_delivery_is_one_record() -> None:
    """The first one is fresh. The other one is checked again when that is committed."""
    query, ids = BatchQuery("q"), [b"a" * 16, b"b" * 16, b"a" * 16]
    first, second = (DeliveryVerdict(CheckOutcome.CHECKED, 3, ids) for _ in range(2))
    query.check(0, ids, first)
    assert (first.all_fresh, first.fresh, first.waiting) == (False, [0, 1], [2])
    query.commit(0, ids[:2])
    query.check(0, ids, second)
    assert list(second.duplicates) == [0, 1, 2]
