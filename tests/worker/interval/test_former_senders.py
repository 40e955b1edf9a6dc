"""What an interval keeps of senders that left: removed computations, and streams that it reads no more (6.1.1)."""

from __future__ import annotations

import pytest

from millwheel.model.keys import ALL_KEYS
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import (
    Acknowledge,
    CatalogChanged,
    CheckSequence,
    GroupWatermarks,
    SequenceChecked,
)
from simulation.held_ids import seen_ids
from tests.worker.interval.solo import INJECTOR, Solo
from tests.worker.interval.test_ids import OWN, Seen, deliver, id_of

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
REFUSED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
WEAK = Sender("u.1.j1", 3, ALL_KEYS, "u.1", 5)
READS = frozenset({INJECTOR, "u.1"})


def checked(solo: Solo, *, alive: bool) -> list[str]:
    """Answer the look-ups; returns what was looked up."""
    asked = [check.sequence for check in solo.take(CheckSequence)]
    for sequence in asked:
        solo.handle(SequenceChecked(sequence, alive))
    return asked


def with_weak_ids() -> Solo:
    """An interval that has the ids of three records of a computation with weak productions."""
    solo = Solo(Seen())
    solo.handle(CatalogChanged(READS))
    deliver(solo, OpaqueIds([id_of(number) for number in range(3)]), "abc", 10, WEAK)
    assert checked(solo, alive=True) == ["u.1.j1"], "nothing was known of the computation"
    solo.commit_all()
    assert [answer.outcome for answer in solo.take(Acknowledge)] == [ACKED]
    assert seen_ids(solo.state.dedup) == 3
    return solo


@pytest.mark.guarantee("G13", section="6.1.1")
def test_ids_of_a_removed_weak_computation_are_forgotten() -> None:
    """Its watermark is not broadcast any more, so they stayed for as long as the interval lived."""
    solo = with_weak_ids()
    solo.handle(CatalogChanged(frozenset({INJECTOR})))
    solo.handle(SequenceChecked("u.1", False))
    dedup = solo.state.dedup
    assert (seen_ids(dedup), dedup.computations()) == (0, [])
    deliver(solo, PositionIds("in/p", 0, [0]), ["x"], 10)
    solo.commit_all()
    solo.take(Acknowledge)
    restarted = Solo(Seen(), entries=[*solo.entries])
    assert (seen_ids(restarted.state.dedup) - 1, restarted.state.dedup.computations()) == (0, [])
    for one in (solo, restarted):
        commits = one.state.journal.committed
        deliver(one, OpaqueIds([id_of(1)]), "b", 10, WEAK)
        assert checked(one, alive=False) == ["u.1.j1"], "a late copy may come at any time"
        assert [answer.outcome for answer in one.take(Acknowledge)] == [REFUSED]
        assert one.state.journal.committed == commits
        assert one.state.dedup.computations() == []


@pytest.mark.guarantee("G1", section="6.1.1")
def test_a_removed_computation_is_known_while_records_wait() -> None:
    solo = Solo(Seen())
    solo.handle(CatalogChanged(READS))
    deliver(solo, OpaqueIds([id_of(1)]), "a", 10, WEAK)
    checked(solo, alive=True)
    solo.handle(SequenceChecked("u.1", False))
    solo.commit_all()
    assert seen_ids(solo.state.dedup) == 1
    solo.handle(SequenceChecked("u.1", False))
    assert seen_ids(solo.state.dedup) == 0


@pytest.mark.guarantee("G13", section="6.1.1")
@pytest.mark.parametrize("opening", [False, True])
def test_ids_of_a_former_input_go_by_its_watermark(opening: bool) -> None:
    """An update took the stream from the inputs. Its computation lives, and its ids stayed."""
    solo = with_weak_ids()
    left, broadcast = CatalogChanged(frozenset({INJECTOR}), beside=frozenset({"u.1"})), GroupWatermarks({"u.1": 99})
    if opening:
        solo = Solo(Seen(), entries=[*solo.entries], early=[left, broadcast])
    else:
        solo.handle(left)
        solo.handle(broadcast)
    assert seen_ids(solo.state.dedup) == 0
    solo.watermark(50)
    assert solo.state.inputs.value == 50, "it holds no watermark, and advances none"


@pytest.mark.guarantee("G13", section="4.5")
def test_ids_of_an_injected_feedback_stream_are_forgotten() -> None:
    """The injectors of such a stream take no part in the input watermark, so nothing ever collected their ids."""
    solo = Solo(Seen())
    back = Sender("injector/back/p", 4, None, "injector/back", 5)
    solo.handle(CatalogChanged(frozenset({INJECTOR}), slack={"injector/back": 30}, beside=frozenset({"injector/back"})))
    solo.handle(GroupWatermarks({"injector/back": 20}))
    deliver(solo, OpaqueIds([id_of(1)]), "a", 10, back)
    solo.commit_all()
    for watermark, kept in ((50, 1), (51, 0)):
        solo.handle(GroupWatermarks({"injector/back": watermark}))
        assert seen_ids(solo.state.dedup) == kept
    deliver(solo, OpaqueIds([id_of(1)]), "a", 10, back)
    assert solo.take(Acknowledge)[-1].message.startswith("too old")
    deliver(solo, OpaqueIds([id_of(2)]), "a", 10, OWN)
    assert solo.state.inputs.value < 0, "the feedback stream's watermark advances nothing"
