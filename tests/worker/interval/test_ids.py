"""Regressions: the duplicate check as an interval goes through it, over long waits and at a takeover (6.1.1)."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import seconds
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.dedup import BatchIds, DeliveryIds, DeliveryVerdict, OpaqueIds, PositionIds, Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    CatalogChanged,
    CheckSequence,
    DeleteParts,
    Delivery,
    FlushStates,
    GroupWatermarks,
    PartsMissing,
    PartsWritten,
    ReadSegments,
    SendDelivery,
    SequenceChecked,
    StatesFlushed,
    WriteParts,
)
from simulation.held_ids import pending_ids, seen_ids
from tests.worker.interval.driver import INJECTOR, IntervalDriver

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
OWN = Sender("injector/in/p", 1, None, INJECTOR)


class Seen(mw.Computation[tuple[str, str], list[str]]):
    """Keeps each record and produces it. "bad" fails."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        if what == "bad":
            raise ValueError(what)
        ctx.state.append(what)
        ctx.produce("out", what)


def id_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * 2


def deliver(
    driver: IntervalDriver, ids: DeliveryIds, whats: Iterable[str], stamp: int, sender: Sender = OWN
) -> Delivery:
    values = [msgspec.msgpack.encode(("k", what)) for what in whats]
    delivery = Delivery(
        IncarnationId("test.1"), "test.1.j1", "in", sender, ids, [b"k"] * len(values), values, [stamp] * len(values)
    )
    driver.handle(delivery)
    return delivery


def tidy(driver: IntervalDriver) -> None:
    """Perform all effects on the store except reads. Commits are included."""
    while True:
        busy = driver.commit_all()
        for flush in driver.take(FlushStates):
            driver.handle(StatesFlushed(flush.number))
            busy += 1
        for write in driver.take(WriteParts):
            driver.handle(PartsWritten(write.number))
            busy += 1
        for send in driver.take(SendDelivery):
            driver.handle(Acknowledged(send.delivery.token))
            busy += 1
        if not busy:
            return


def sealing(**options: Any) -> IntervalDriver:
    """An interval whose id segments hold four ids; one of them is stored."""
    driver = IntervalDriver(Seen(), **options)
    driver.state.dedup.segment_ids = 4
    deliver(driver, OpaqueIds([id_of(number) for number in range(4)]), "abcd", 10)
    tidy(driver)
    assert len(driver.state.journal.segments) == 1
    return driver


@pytest.mark.guarantee("G1")
def test_a_segment_collected_while_it_is_read_costs_a_repetition() -> None:
    """Regression: the read found no segment, and the interval was given up for good."""
    driver = sealing(settings=IntervalSettings(checkpoint_entries=1, flush_interval=0))
    copy = deliver(driver, OpaqueIds([id_of(2), id_of(9)]), "cz", 10)
    (read,) = driver.take(ReadSegments)
    tidy(driver)
    driver.handle(GroupWatermarks({INJECTOR: 1_000}, {INJECTOR: [("injector/in/p", 1)]}))
    for number in range(20, 26):
        deliver(driver, OpaqueIds([id_of(number)]), "x", 2_000)
        driver.now += 10
        tidy(driver)
    deleted = [part for delete in driver.take(DeleteParts) for part in delete.parts]
    assert set(read.parts) <= set(deleted), "the test has not got there"
    driver.waiting.clear()
    driver.handle(PartsMissing(read.parts, "part", "the value is missing"))
    tidy(driver)
    answers = [(one.outcome, list(one.indexes)) for one in driver.take(AnswerDelivery) if one.delivery is copy]
    assert answers == [(FULL, [0]), (ACKED, [0])], "the one that needed no look is in, the other is asked for again"
    stamped = Sender("injector/in/p", 1, None, INJECTOR, 1_000)
    deliver(driver, OpaqueIds([id_of(2)]), "c", 1_500, stamped)
    assert pending_ids(driver.state.dedup) == 1, "checked again"


@pytest.mark.guarantee("G1")
def test_a_needed_segment_that_is_missing_is_a_named_error() -> None:
    driver = sealing()
    deliver(driver, OpaqueIds([id_of(2)]), "c", 10)
    (read,) = driver.take(ReadSegments)
    with pytest.raises(CorruptValueError, match="part 5"):
        driver.handle(PartsMissing(read.parts, "part 5", "the value is missing"))


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_copy_of_a_record_in_flight_is_acked_after_its_commit() -> None:
    """Otherwise the sender would drop a record that is in no journal."""
    driver = IntervalDriver(Seen())
    ids = PositionIds("in/p", 0, [1])
    deliver(driver, ids, ["a"], 10)
    driver.handle(SequenceChecked("in/p", True))
    copy = deliver(driver, ids, ["a"], 10)
    assert [(one.delivery, one.outcome, list(one.indexes)) for one in driver.take(AnswerDelivery)] == [
        (copy, FULL, [0])
    ]
    driver.commit_all()
    copy = deliver(driver, ids, ["a"], 10)
    assert [one.outcome for one in driver.take(AnswerDelivery) if one.delivery is copy] == [ACKED]


@pytest.mark.guarantee("G13")
def test_copies_of_a_record_that_waits_leave_nothing_behind() -> None:
    """A key may fail for days, while its sender repeats the record. Regression: each copy was remembered."""
    driver = IntervalDriver(Seen(), on_failure=mw.retry(initial=seconds(20)))
    ids = PositionIds("in/p", 0, [1])
    deliver(driver, ids, ["bad"], 10)
    driver.commit_all()
    for _ in range(50):
        deliver(driver, ids, ["bad"], 10)
    driver.waiting.clear()
    gc.collect()
    assert sum(isinstance(one, DeliveryVerdict) for one in gc.get_objects()) < 10


@pytest.mark.guarantee("G13")
def test_a_delivery_that_is_refused_whole_is_not_acked_as_well() -> None:
    """Regression: the delivery was ACKed for none of its records. Senders took that for room, and did not back off."""
    driver = IntervalDriver(
        Seen(), settings=IntervalSettings(queue_records=2), on_failure=mw.retry(initial=seconds(20))
    )
    deliver(driver, PositionIds("in/p", 0, [1, 2]), ["bad", "bad"], 10)
    driver.commit_all()
    driver.waiting.clear()
    full = deliver(driver, PositionIds("in/p", 0, [3]), ["x"], 20)
    copy = deliver(driver, PositionIds("in/p", 0, [1]), ["bad"], 10)
    mixed = deliver(driver, PositionIds("in/p", 0, [1, 3]), ["bad", "x"], 20)
    answers = [(one.delivery, one.outcome, list(one.indexes)) for one in driver.take(AnswerDelivery)]
    assert answers == [(full, FULL, [0]), (copy, FULL, [0]), (mixed, FULL, [0, 1])]


@pytest.mark.guarantee("G13")
def test_deliveries_that_wait_for_a_sequence_lookup_are_bounded() -> None:
    """Senders reconnect and repeat while the coordinator is away. Regression: each copy was kept."""
    driver = IntervalDriver(Seen())
    sender = Sender("u.1.j1", 3, ALL_KEYS, "u.1")
    for _ in range(100):
        deliver(driver, PositionIds("u.1.j1", 0, [1]), ["x"], 10, sender)
    assert len(driver.take(CheckSequence)) == 1
    refused = [one for one in driver.take(AnswerDelivery) if one.outcome == FULL]
    assert len(refused) >= 30
    assert "looked up" in refused[0].message


@pytest.mark.guarantee("G13")
def test_messages_received_during_recovery_are_kept_as_their_sum() -> None:
    """If the store is away, an interval stays opening, and watermarks come every few milliseconds."""
    alive: list[int] = []

    def early() -> Iterator[GroupWatermarks]:
        for number in range(1_000):
            yield GroupWatermarks({INJECTOR: 5 * number}, {INJECTOR: [("injector/in/p", number)]})
        alive.append(sum(isinstance(one, GroupWatermarks) for one in gc.get_objects()))

    driver = IntervalDriver(Seen(), early=early())
    assert alive[0] < 10
    old = Sender("injector/in/p", 998, None, INJECTOR)
    deliver(driver, OpaqueIds([id_of(1)]), "x", 10_000, old)
    (answer,) = driver.take(AnswerDelivery)
    assert answer.outcome == DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
    assert driver.state.inputs.value == 5 * 999


@pytest.mark.guarantee("G13")
def test_watermarks_received_during_recovery_collect_ids() -> None:
    """Regression: the watermarks were applied to a Dedup that recovery then replaced.

    Ids stayed until the sender's next advance.
    """
    driver = IntervalDriver(Seen())
    deliver(driver, OpaqueIds([id_of(1)]), "x", 1)
    tidy(driver)
    parts = {PartId(f"dedup/{number}", 7, 1): blob for number, blob in enumerate(driver.state.dedup.snapshot().blobs)}
    assert seen_ids(IntervalDriver(Seen(), parts=parts).state.dedup) == 1
    assert seen_ids(IntervalDriver(Seen(), early=[GroupWatermarks({INJECTOR: 9})], parts=parts).state.dedup) == 0


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("early", [True, False])
def test_earlier_broadcasts_apply_to_the_first_opaque_ids(early: bool) -> None:
    """A late record's id is kept for the slack behind the watermark at its receipt, and an old copy is refused."""
    driver = IntervalDriver(Seen(), early=[GroupWatermarks({INJECTOR: 1_000})] if early else [])
    driver.handle(CatalogChanged(frozenset({INJECTOR}), slack={INJECTOR: 300}))
    if not early:
        driver.watermark(1_000)
    deliver(driver, OpaqueIds([id_of(1)]), "x", 10)
    tidy(driver)
    driver.watermark(1_250)
    assert seen_ids(driver.state.dedup) == 1
    deliver(driver, OpaqueIds([id_of(2)]), "x", 10, Sender("injector/in/p", 1, None, INJECTOR, 600))
    *_, answer = driver.take(AnswerDelivery)
    assert answer.message.startswith("too old")
    driver.watermark(1_400)
    assert seen_ids(driver.state.dedup) == 0


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_later_declared_slack_counts_from_then_on() -> None:
    """Regression: the declaration of the stream at the opening of the interval counted for ever, even if there was
    none yet."""
    driver = IntervalDriver(Seen())
    driver.handle(CatalogChanged(frozenset({INJECTOR}), slack={INJECTOR: 500}))
    deliver(driver, OpaqueIds([id_of(1)]), "x", 10)
    tidy(driver)
    driver.watermark(400)
    deliver(driver, OpaqueIds([id_of(1)]), "x", 10)
    assert len(driver.take(AnswerDelivery)) == 2, "the copy is ACKed at once"
    driver.handle(CatalogChanged(frozenset({INJECTOR})))
    assert driver.state.ids.slack == {INJECTOR: 500}


@pytest.mark.guarantee("G1", section="6.1.3")
def test_the_same_id_in_two_batches_makes_two_weak_productions() -> None:
    """Ids are unique within a batch only.

    Regression: the later record's production had the id of the earlier one's. Its receiver dropped it as a duplicate.
    """
    made = []
    for batch in (1, 2):
        for _ in range(2):
            owner = IntervalDriver(Seen(), strong=False)
            deliver(owner, BatchIds("q", batch, [id_of(1)]), "x", 10)
            (send,) = owner.take(SendDelivery)
            made.append(send.delivery.ids.ids[0])  # type: ignore[union-attr]
    assert made[0] == made[1], "a copy of a record causes the same production"
    assert made[0] != made[2]


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_retired_sequence_is_forgotten_also_by_successors() -> None:
    spark = Sender("injector/in/spark", 1, None, INJECTOR)
    reported = CatalogChanged(
        frozenset({INJECTOR}), ended_injectors=frozenset({OWN.name}), ended_queries=frozenset("q")
    )
    driver = IntervalDriver(Seen())
    deliver(driver, PositionIds("in/p/0", 0, [1]), ["a"], 5)
    deliver(driver, BatchIds("q", 3, [id_of(1)]), ["b"], 5, spark)
    driver.commit_all()
    taken = IntervalDriver(Seen(), entries=driver.entries, early=[reported])
    driver.handle(reported)
    for one in (driver, taken):
        assert seen_ids(one.state.dedup) == 0
        one.take(AnswerDelivery)
        late = deliver(one, PositionIds("in/p/0", 0, [1]), ["a"], 5)
        (answer,) = one.take(AnswerDelivery)
        assert (answer.delivery, answer.outcome) == (late, DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER)
