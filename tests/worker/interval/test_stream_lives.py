"""A stream is removed and comes back under its name. Its readers drop their state of the former life (6.1.1, 7.1)."""

from __future__ import annotations

from typing import Final

import pytest

from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.worker.messages import AnswerDelivery, CatalogChanged, GroupWatermarks
from tests.worker.interval.driver import INJECTOR, IntervalDriver
from tests.worker.interval.test_ids import Seen, deliver, id_of

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
REFUSED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
FORMER, PRESENT = {INJECTOR: 1}, {INJECTOR: 5}
BOTH: Final = frozenset({INJECTOR, "b.1"})
IDS: Final[list[OpaqueIds | PositionIds]] = [OpaqueIds([id_of(1)]), PositionIds("in/p", 0, [0])]


def sender(sequencer: int, watermark: int | None = None) -> Sender:
    return Sender("injector/in/p", sequencer, None, INJECTOR, watermark)


def begins(driver: IntervalDriver, lives: dict[str, int]) -> None:
    driver.handle(CatalogChanged(frozenset({INJECTOR}), lives=lives))


def answers(driver: IntervalDriver, ids: DeliveryIds, by: Sender, what: str = "x") -> list[DeliveryOutcome.ValueType]:
    deliver(driver, ids, [what], 100, by)
    driver.commit_all()
    return [answer.outcome for answer in driver.take(AnswerDelivery)]


def former(ids: DeliveryIds) -> IntervalDriver:
    """An interval that has one record of the former life."""
    driver = IntervalDriver(Seen())
    begins(driver, FORMER)
    assert answers(driver, ids, sender(2)) == [ACKED]
    return driver


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_new_life_repeats_the_ids_of_the_former_one(ids: DeliveryIds, restarted: bool) -> None:
    """Regression: records of the new life had the ids of the former one. They were ACKed without an effect."""
    driver = former(ids)
    if restarted:
        # The journal is older than the new life.
        driver = IntervalDriver(
            Seen(), entries=driver.entries, early=[CatalogChanged(frozenset({INJECTOR}), lives=PRESENT)]
        )
    else:
        begins(driver, PRESENT)
    commits = driver.state.journal.committed
    assert answers(driver, ids, sender(9)) == [ACKED]
    assert driver.state.journal.committed == commits + 1
    assert answers(driver, ids, sender(2)) == [REFUSED], "a copy of the former life comes late"
    driver = IntervalDriver(Seen(), entries=[*driver.entries])
    commits = driver.state.journal.committed
    assert answers(driver, ids, sender(9)) == [ACKED], "a copy in the new life is a duplicate, also after a takeover"
    assert driver.state.journal.committed == commits
    assert answers(driver, ids, sender(2)) == [REFUSED], "the journal says so, without the catalog"


@pytest.mark.guarantee("G8", section="6.1.1")
@pytest.mark.parametrize("gap", [False, True])
@pytest.mark.parametrize("end", [1_000, MAX_TIMESTAMP])
def test_a_new_life_begins_behind_the_end_of_the_former(gap: bool, end: int) -> None:
    """Regression: the id horizon of the former life refused the new life's records as too old, for ever."""
    driver = former(IDS[0])
    driver.handle(GroupWatermarks({INJECTOR: end}, {INJECTOR: [("injector/in/p", 2)]}))
    if gap:
        driver.handle(CatalogChanged(frozenset()))
    begins(driver, PRESENT)
    assert answers(driver, OpaqueIds([id_of(2)]), sender(9, 100)) == [ACKED]


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("sealed", [False, True])
def test_records_in_progress_leave_no_ids_to_the_new_life(ids: DeliveryIds, sealed: bool) -> None:
    """These records are committed after the new life began. Their ids would make its first records duplicates."""
    driver = IntervalDriver(Seen())
    begins(driver, FORMER)
    if not sealed:
        # An append is in flight, so the record waits in the queue.
        deliver(driver, OpaqueIds([id_of(7)]), ["w"], 100, sender(2))
    deliver(driver, ids, ["x"], 100, sender(2))
    begins(driver, PRESENT)
    driver.commit_all()
    assert [answer.outcome for answer in driver.take(AnswerDelivery)] == [ACKED] * (1 if sealed else 2)
    restarted = IntervalDriver(
        Seen(), entries=[*driver.entries], early=[CatalogChanged(frozenset({INJECTOR}), lives=PRESENT)]
    )
    for one in (driver, restarted):
        commits = one.state.journal.committed
        assert answers(one, ids, sender(9)) == [ACKED]
        assert one.state.journal.committed == commits + 1


@pytest.mark.guarantee("G1", section="6.1.1")
@pytest.mark.parametrize("ids", IDS)
def test_ids_of_the_present_life_stay_without_its_floor(ids: DeliveryIds) -> None:
    """An earlier version served the present life, and journaled no lower bound of its sequencers."""
    driver = IntervalDriver(Seen())
    assert answers(driver, ids, sender(9)) == [ACKED]
    shown = CatalogChanged(frozenset({INJECTOR}), lives=PRESENT)
    for _ in range(3):
        driver = IntervalDriver(Seen(), entries=driver.entries, early=[shown])
        driver.handle(shown)
        commits = driver.state.journal.committed
        assert answers(driver, ids, sender(9)) == [ACKED]
        assert driver.state.journal.committed == commits
        assert answers(driver, OpaqueIds([id_of(commits + 100)]), sender(9)) == [ACKED]
        assert driver.state.journal.committed == commits + 1
    begins(driver, {INJECTOR: 11})
    assert answers(driver, ids, sender(12)) == [ACKED]
    assert driver.state.journal.committed == commits + 2


@pytest.mark.guarantee("G7", section="4.5")
@pytest.mark.parametrize("gap", [False, True])
def test_a_running_interval_drops_the_former_lifes_watermark(gap: bool) -> None:
    """Regression: the interval kept the value at which the former life ended.

    So its input watermark passed the new life's.
    """
    driver = IntervalDriver(Seen())
    driver.handle(CatalogChanged(BOTH, lives=FORMER))
    driver.handle(GroupWatermarks({INJECTOR: MAX_TIMESTAMP, "b.1": 500}))
    if gap:
        driver.handle(CatalogChanged(frozenset({"b.1"})))
    driver.handle(CatalogChanged(BOTH, lives=PRESENT))
    driver.handle(GroupWatermarks({"b.1": 10_000}))
    assert driver.state.clocks.watermark == 500
    driver.handle(GroupWatermarks({INJECTOR: 600}))
    assert driver.state.clocks.watermark == 600
