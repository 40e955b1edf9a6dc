"""A stream goes away and comes back under its name: what readers that stay know of its former life (6.1.1, 7.1)."""

from __future__ import annotations

from typing import Final

import pytest

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import Acknowledge, CatalogChanged, GroupWatermarks
from tests.worker.interval.solo import INJECTOR, Solo
from tests.worker.interval.test_ids import Seen, deliver, id_of

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
REFUSED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
FORMER, PRESENT = {INJECTOR: 1}, {INJECTOR: 5}
BOTH: Final = frozenset({INJECTOR, "b.1"})
IDS: Final[list[OpaqueIds | PositionIds]] = [OpaqueIds([id_of(1)]), PositionIds("in/p", 0, [0])]


def sender(sequencer: int, watermark: int | None = None) -> Sender:
    return Sender("injector/in/p", sequencer, None, INJECTOR, watermark)


def begins(solo: Solo, lives: dict[str, int]) -> None:
    solo.handle(CatalogChanged(frozenset({INJECTOR}), lives=lives))


def answers(solo: Solo, ids: DeliveryIds, by: Sender, what: str = "x") -> list[DeliveryOutcome.ValueType]:
    deliver(solo, ids, [what], 100, by)
    solo.commit_all()
    return [answer.outcome for answer in solo.take(Acknowledge)]


def former(ids: DeliveryIds) -> Solo:
    """An interval that has one record of the former life."""
    solo = Solo(Seen())
    begins(solo, FORMER)
    assert answers(solo, ids, sender(2)) == [ACKED]
    return solo


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_life_repeats_the_ids_of_the_former_one(ids: DeliveryIds, restarted: bool) -> None:
    """Regression: records of the new life had the ids of the former one. They were ACKed without an effect."""
    solo = former(ids)
    if restarted:
        # The journal is older than the new life.
        solo = Solo(Seen(), entries=solo.entries, early=[CatalogChanged(frozenset({INJECTOR}), lives=PRESENT)])
    else:
        begins(solo, PRESENT)
    commits = solo.state.journal.committed
    assert answers(solo, ids, sender(9)) == [ACKED]
    assert solo.state.journal.committed == commits + 1
    assert answers(solo, ids, sender(2)) == [REFUSED], "a copy of the former life comes late"
    solo = Solo(Seen(), entries=[*solo.entries])
    commits = solo.state.journal.committed
    assert answers(solo, ids, sender(9)) == [ACKED], "a copy in the new life is a duplicate, also after a takeover"
    assert solo.state.journal.committed == commits
    assert answers(solo, ids, sender(2)) == [REFUSED], "the journal says so, without the catalog"


@pytest.mark.guarantee("G8", section="6.1.1")
@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("end", [1_000, MAX_TIMESTAMP])
def test_a_new_life_begins_behind_the_end_of_the_former(gap: bool, end: int) -> None:
    """Regression: the id horizon of the former life refused the new life's records as too old, for ever."""
    solo = former(IDS[0])
    solo.handle(GroupWatermarks({INJECTOR: end}, {INJECTOR: [("injector/in/p", 2)]}))
    if gap:
        solo.handle(CatalogChanged(frozenset()))
    begins(solo, PRESENT)
    assert answers(solo, OpaqueIds([id_of(2)]), sender(9, 100)) == [ACKED]


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("sealed", [False, True])
def test_records_in_progress_leave_no_ids_to_the_new_life(ids: DeliveryIds, sealed: bool) -> None:
    """These records are committed after the new life began. Their ids would make its first records duplicates."""
    solo = Solo(Seen())
    begins(solo, FORMER)
    if not sealed:
        # An append is in flight, so the record waits in the queue.
        deliver(solo, OpaqueIds([id_of(7)]), ["w"], 100, sender(2))
    deliver(solo, ids, ["x"], 100, sender(2))
    begins(solo, PRESENT)
    solo.commit_all()
    assert [answer.outcome for answer in solo.take(Acknowledge)] == [ACKED] * (1 if sealed else 2)
    restarted = Solo(Seen(), entries=[*solo.entries], early=[CatalogChanged(frozenset({INJECTOR}), lives=PRESENT)])
    for one in (solo, restarted):
        commits = one.state.journal.committed
        assert answers(one, ids, sender(9)) == [ACKED]
        assert one.state.journal.committed == commits + 1


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("ids", IDS)
def test_ids_of_the_present_life_stay_without_its_floor(ids: DeliveryIds) -> None:
    """An earlier version served the present life, and journaled no floor."""
    solo = Solo(Seen())
    assert answers(solo, ids, sender(9)) == [ACKED]
    shown = CatalogChanged(frozenset({INJECTOR}), lives=PRESENT)
    for _ in range(3):
        solo = Solo(Seen(), entries=solo.entries, early=[shown])
        solo.handle(shown)
        commits = solo.state.journal.committed
        assert answers(solo, ids, sender(9)) == [ACKED]
        assert solo.state.journal.committed == commits
        assert answers(solo, OpaqueIds([id_of(commits + 100)]), sender(9)) == [ACKED]
        assert solo.state.journal.committed == commits + 1
    begins(solo, {INJECTOR: 11})
    assert answers(solo, ids, sender(12)) == [ACKED]
    assert solo.state.journal.committed == commits + 2


@pytest.mark.guarantee("G7", section="4.5")
@pytest.mark.parametrize("gap", [False, True])
def test_a_running_interval_drops_the_former_lifes_watermark(gap: bool) -> None:
    """Regression: the interval kept the value at which the former life ended.

    So its input watermark passed the new life's.
    """
    solo = Solo(Seen())
    solo.handle(CatalogChanged(BOTH, lives=FORMER))
    solo.handle(GroupWatermarks({INJECTOR: MAX_TIMESTAMP, "b.1": 500}))
    if gap:
        solo.handle(CatalogChanged(frozenset({"b.1"})))
    solo.handle(CatalogChanged(BOTH, lives=PRESENT))
    solo.handle(GroupWatermarks({"b.1": 10_000}))
    assert solo.state.clocks.watermark == 500
    solo.handle(GroupWatermarks({INJECTOR: 600}))
    assert solo.state.clocks.watermark == 600
