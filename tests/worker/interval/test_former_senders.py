"""The state that an interval keeps of former senders: removed computations, and streams that it no longer reads."""

from __future__ import annotations

import pytest

from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import (
    AnswerDelivery,
    CatalogChanged,
    CheckSequence,
    GroupWatermarks,
    SequenceChecked,
)
from simulation.held_ids import seen_ids
from tests.worker.interval.driver import INJECTOR, IntervalDriver
from tests.worker.interval.test_ids import OWN, Seen, deliver, id_of

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
REFUSED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
WEAK = Sender("u.1.j1", 3, ALL_KEYS, "u.1", 5)
READS = frozenset({INJECTOR, "u.1"})


def checked(driver: IntervalDriver, *, alive: bool) -> list[str]:
    """Answer the look-ups. Returns the sequences that were looked up."""
    asked = [check.sequence for check in driver.take(CheckSequence)]
    for sequence in asked:
        driver.handle(SequenceChecked(sequence, alive))
    return asked


def with_weak_ids() -> IntervalDriver:
    """An interval that has the ids of three records of a computation with weak productions."""
    driver = IntervalDriver(Seen())
    driver.handle(CatalogChanged(READS))
    deliver(driver, OpaqueIds([id_of(number) for number in range(3)]), "abc", 10, WEAK)
    assert checked(driver, alive=True) == ["u.1.j1"], "nothing was known of the computation"
    driver.commit_all()
    assert [answer.outcome for answer in driver.take(AnswerDelivery)] == [ACKED]
    assert seen_ids(driver.state.dedup) == 3
    return driver


@pytest.mark.guarantee("G13", section="6.1.1")
def test_ids_of_a_removed_weak_computation_are_forgotten() -> None:
    """The sender's watermark is no longer broadcast, so the interval kept the ids for ever."""
    driver = with_weak_ids()
    driver.handle(CatalogChanged(frozenset({INJECTOR})))
    driver.handle(SequenceChecked("u.1", False))
    dedup = driver.state.dedup
    assert (seen_ids(dedup), dedup.computations()) == (0, [])
    deliver(driver, PositionIds("in/p", 0, [0]), ["x"], 10)
    driver.commit_all()
    driver.take(AnswerDelivery)
    restarted = IntervalDriver(Seen(), entries=[*driver.entries])
    assert (seen_ids(restarted.state.dedup) - 1, restarted.state.dedup.computations()) == (0, [])
    for one in (driver, restarted):
        commits = one.state.journal.committed
        deliver(one, OpaqueIds([id_of(1)]), "b", 10, WEAK)
        assert checked(one, alive=False) == ["u.1.j1"], "a late copy may come at any time"
        assert [answer.outcome for answer in one.take(AnswerDelivery)] == [REFUSED]
        assert one.state.journal.committed == commits
        assert one.state.dedup.computations() == []


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_removed_computation_is_known_while_records_wait() -> None:
    driver = IntervalDriver(Seen())
    driver.handle(CatalogChanged(READS))
    deliver(driver, OpaqueIds([id_of(1)]), "a", 10, WEAK)
    checked(driver, alive=True)
    driver.handle(SequenceChecked("u.1", False))
    driver.commit_all()
    assert seen_ids(driver.state.dedup) == 1
    driver.handle(SequenceChecked("u.1", False))
    assert seen_ids(driver.state.dedup) == 0


@pytest.mark.guarantee("G13", section="6.1.1")
@pytest.mark.parametrize("opening", [False, True])
def test_ids_of_a_former_input_go_by_its_watermark(opening: bool) -> None:
    """An update took the stream from the inputs. Its computation lives, and its ids stayed."""
    driver = with_weak_ids()
    left, broadcast = CatalogChanged(frozenset({INJECTOR}), beside=frozenset({"u.1"})), GroupWatermarks({"u.1": 99})
    if opening:
        driver = IntervalDriver(Seen(), entries=[*driver.entries], early=[left, broadcast])
    else:
        driver.handle(left)
        driver.handle(broadcast)
    assert seen_ids(driver.state.dedup) == 0
    driver.watermark(50)
    assert driver.state.inputs.value == 50, "it holds no watermark, and advances none"


@pytest.mark.guarantee("G13", section="4.5")
def test_ids_of_an_injected_feedback_stream_are_forgotten() -> None:
    """The injectors of such a stream take no part in the input watermark, so nothing ever collected their ids."""
    driver = IntervalDriver(Seen())
    back = Sender("injector/back/p", 4, None, "injector/back", 5)
    driver.handle(
        CatalogChanged(frozenset({INJECTOR}), slack={"injector/back": 30}, beside=frozenset({"injector/back"}))
    )
    driver.handle(GroupWatermarks({"injector/back": 20}))
    deliver(driver, OpaqueIds([id_of(1)]), "a", 10, back)
    driver.commit_all()
    for watermark, kept in ((50, 1), (51, 0)):
        driver.handle(GroupWatermarks({"injector/back": watermark}))
        assert seen_ids(driver.state.dedup) == kept
    deliver(driver, OpaqueIds([id_of(1)]), "a", 10, back)
    assert driver.take(AnswerDelivery)[-1].message.startswith("too old")
    deliver(driver, OpaqueIds([id_of(2)]), "a", 10, OWN)
    assert driver.state.inputs.value < 0, "the feedback stream's watermark advances nothing"


@pytest.mark.guarantee("G13", section="6.1.1")
def test_ids_of_an_injected_stream_that_is_gone_are_forgotten() -> None:
    """A reader that stayed kept them until the stream came back. Its next life begins at 42 or above."""
    driver = IntervalDriver(Seen())
    driver.handle(CatalogChanged(frozenset({INJECTOR}), lives={INJECTOR: 1}))
    deliver(driver, OpaqueIds([id_of(1)]), "a", 10, OWN)
    driver.commit_all()
    driver.handle(CatalogChanged(frozenset(), lives={INJECTOR: 42}))
    assert seen_ids(driver.state.dedup) == 0
    deliver(driver, OpaqueIds([id_of(1)]), "a", 10, OWN)
    assert driver.take(AnswerDelivery)[-1].outcome == REFUSED
    driver.handle(CatalogChanged(frozenset({INJECTOR}), lives={INJECTOR: 42}))
    driver.watermark(5)
    deliver(driver, OpaqueIds([id_of(1)]), "a", 10, Sender("injector/in/p", 43, None, INJECTOR))
    driver.commit_all()
    assert driver.take(AnswerDelivery)[-1].outcome == ACKED
    assert seen_ids(driver.state.dedup) == 1
