"""A commit of a computation that only collects waits for more records, if senders have many (6.1.1)."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.model.keys import ALL_KEYS
from millwheel.worker import messages as m
from millwheel.worker.dedup import Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import decode_entry
from tests.worker.interval.driver import INJECTOR, IntervalDriver

WAIT = 1_000


class Collecting(mw.Computation[tuple[str, str], list[str]]):
    """Collects its key's records, until one of them asks for a production."""

    _collects_for = WAIT

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        what = record.value[1]
        ctx.state.append(what)
        if what == "fail":
            raise ValueError("as asked")
        if what == "produce":
            ctx.produce("out", ",".join(ctx.state))
        if what == "wake":
            ctx.set_timer(mw.Timestamp(50))

    def process_timer(self, ctx: mw.Context[list[str]], timer: mw.Timer) -> None:
        ctx.state.append("woken")


def collecting(late: mw.Late = mw.Late.PROCESS, **settings: int) -> IntervalDriver:
    chosen: dict[str, Any] = {"gathered_from": 2, "collects_for": 5 * WAIT, **settings}
    return IntervalDriver(Collecting(), settings=IntervalSettings(**chosen), late=late)


def appends(driver: IntervalDriver) -> int:
    """How many entries wait for their append."""
    return sum(isinstance(one, m.AppendEntry) for one in driver.waiting)


def tick(driver: IntervalDriver, after: int) -> None:
    driver.now += after
    driver.handle(m.Tick())


def loaded(late: mw.Late = mw.Late.PROCESS, **settings: int) -> IntervalDriver:
    """Its last commit had several deliveries."""
    driver = collecting(late, **settings)
    for what in "xyz":
        driver.deliver(("before", what, 10))
    driver.commit()
    assert appends(driver) == 0
    tick(driver, WAIT)
    driver.commit()
    driver.take(m.AnswerDelivery)
    return driver


@pytest.mark.guarantee("G1", "G8", section="6.1.1")
def test_deliveries_share_a_commit_until_the_wait_is_over() -> None:
    driver = loaded()
    driver.deliver(("a", "1", 10), ("a", "2", 10))
    assert (appends(driver), driver.take(m.AnswerDelivery)) == (0, [])
    assert driver.core.next_deadline() == driver.now + WAIT
    tick(driver, WAIT // 2)
    driver.deliver(("a", "3", 20))
    driver.watermark(5)
    assert (appends(driver), driver.take(m.AnswerDelivery)) == (0, [])
    tick(driver, WAIT // 2)
    assert appends(driver) == 1
    driver.commit()
    (_, states), *others = decode_entry(driver.entries[-1], "the last").states
    assert (states, others) == (b"\x93\xa11\xa12\xa13", [])
    assert len(driver.take(m.AnswerDelivery)) == 2


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_sender_that_waits_for_each_ack_waits_once() -> None:
    driver = collecting()
    for _ in range(3):
        driver.deliver(("a", "1", 10), ("b", "2", 10))
        driver.commit()
        assert len(driver.take(m.AnswerDelivery)) == 1
    driver = loaded()
    for waits in (True, False, False):
        driver.deliver(("a", "1", 10), ("b", "2", 10))
        assert appends(driver) == (not waits)
        tick(driver, WAIT * waits)
        driver.commit()


def test_what_a_computation_sends_waits_for_more() -> None:
    """Its senders have their ACKs."""
    driver = collecting()
    driver.handle(m.CatalogChanged(frozenset({INJECTOR, "u.1"})))
    driver.deliver(("a", "1", 10), ("b", "2", 10), sender=Sender("u.1.j1", 3, ALL_KEYS, "u.1", 5))
    assert appends(driver) == 0
    tick(driver, WAIT)
    driver.commit()
    assert len(driver.take(m.AnswerDelivery)) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_records_without_a_state_wait_for_no_other() -> None:
    driver = loaded(mw.Late.DROP)
    driver.watermark(50)
    driver.deliver(("a", "1", 20), ("b", "2", 20))
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_deliveries_that_are_there_end_with_the_wait() -> None:
    """Both waits begin with the first delivery. So no ACK waits for one after the other."""
    driver = loaded(gathered_for=100 * WAIT)
    for entries in (0, 0, 1):
        driver.deliver(("a", "1", 10), ("a", "2", 10), followed=True)
        assert appends(driver) == entries
        driver.now += WAIT // 2


@pytest.mark.guarantee("G7", section="4.5")
def test_records_of_a_commit_that_waits_hold_the_watermark() -> None:
    driver = loaded()
    driver.deliver(("a", "1", 10), ("a", "2", 30))
    driver.watermark(40)
    assert driver.output == 10
    tick(driver, WAIT)
    driver.commit()
    assert driver.output == 40


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_production_waits_for_no_record() -> None:
    driver = loaded()
    driver.deliver(("a", "1", 10), ("b", "produce", 10))
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_few_records_wait_for_no_other() -> None:
    driver = loaded()
    driver.deliver(("a", "1", 10))
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_timer_that_fires_ends_the_wait() -> None:
    driver = loaded()
    driver.deliver(("a", "wake", 10))
    driver.deliver(("a", "1", 60))
    driver.deliver(("b", "2", 60))
    driver.commit()
    assert appends(driver) == 0
    driver.watermark(55)
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_work_that_failed_ends_the_wait() -> None:
    driver = loaded()
    driver.deliver(("a", "1", 10), ("b", "2", 10), ("b", "fail", 10))
    assert appends(driver) == 1


@pytest.mark.guarantee("G13", section="6.1.1")
def test_a_full_batch_ends_the_wait() -> None:
    driver = loaded(batch_records=3)
    driver.deliver(("a", "1", 10), ("b", "2", 10))
    assert appends(driver) == 0
    driver.deliver(("a", "3", 10))
    assert appends(driver) == 1


@pytest.mark.guarantee("G8", section="6.1.1")
def test_a_wait_that_is_over_goes_on_behind_an_append() -> None:
    """The batch cannot be sealed while another append is in flight. It is sealed when that one ends."""
    driver = loaded()
    driver.deliver(("a", "produce", 10))
    driver.deliver(("a", "1", 20), ("b", "2", 20))
    tick(driver, 2 * WAIT)
    assert appends(driver) == 1
    driver.commit()
    assert appends(driver) == 1
    driver.commit()
    assert [len(decode_entry(one, "an entry").states) for one in driver.entries[-2:]] == [1, 2]


@pytest.mark.guarantee("G8", section="6.1.1")
def test_without_the_setting_no_commit_waits() -> None:
    driver = collecting(collects_for=0)
    driver.deliver(("a", "1", 10), ("a", "2", 10))
    driver.deliver(("a", "3", 10), ("a", "4", 10))
    driver.deliver(("a", "5", 10), ("a", "6", 10))
    driver.commit()
    assert appends(driver) == 1
