"""A computation without inputs begins by one timer, which fires once, also after takeovers (G5; section 4.6)."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel as mw
from millwheel.model.keys import ALL_KEYS
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.rpc.hook_failures import failure_text
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.store.contract import JournalHead
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import Acknowledged, CatalogChanged, OpenedParent, Parent, SendDelivery
from millwheel.worker.process.hook_status import failures_of
from tests.worker.interval.driver import INJECTOR, IntervalDriver

LOW, HIGH = ALL_KEYS.split(b"m")


class Begins(mw.Computation[tuple[str, str], int]):
    """Says that it has begun."""

    _begins_with = "first"
    _remedy = "see whether the source can be reached"
    fails = 0

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Any]) -> None:
        raise AssertionError("nothing sends records")

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        if self.fails:
            self.fails -= 1
            raise ValueError("not yet")
        ctx.state += 1
        ctx.produce("out", f"{ctx.key} begins")


def said(driver: IntervalDriver) -> list[str]:
    driver.commit_all()
    return [value for value, _ in driver.sent()]


@pytest.mark.guarantee("G5", section="4.6")
def test_it_begins_once() -> None:
    driver = IntervalDriver(Begins())
    assert said(driver) == ["first begins"]
    assert said(IntervalDriver(Begins(), entries=driver.entries)) == ["first begins"]  # sent again, until it is ACKed
    assert IntervalDriver(Begins(), entries=driver.entries).commit_all() == 0


@pytest.mark.guarantee("G5", section="6.2")
def test_an_owner_that_died_first_has_not_begun() -> None:
    died = IntervalDriver(Begins())
    assert died.entries == []
    assert said(IntervalDriver(Begins())) == ["first begins"]


@pytest.mark.guarantee("G12", section="6.2")
def test_a_base_before_the_first_commit_has_the_timer() -> None:
    waits = Begins()
    waits.fails = 10
    driver = IntervalDriver(waits)
    assert said(IntervalDriver(Begins(), parts=driver.base().parts)) == ["first begins"]


@pytest.mark.guarantee("G5", section="6.2")
@pytest.mark.parametrize("begun", [False, True])
def test_one_child_of_a_split_begins_unless_its_parent_has(begun: bool) -> None:
    owner = IntervalDriver(Begins())
    if begun:
        owner.commit_all()
    parent = Parent("test.1.j0", ALL_KEYS)
    opened = OpenedParent(parent, JournalHead(9, len(owner.entries), 0, ()), {}, owner.entries)
    commits = [IntervalDriver(Begins(), parents=[opened], keys=keys).commit_all() for keys in (LOW, HIGH)]
    assert commits == [0 if begun else 1, 0]


def test_a_key_of_another_interval_does_not_begin() -> None:
    driver = IntervalDriver(Begins(), keys=HIGH)
    assert driver.commit_all() == 0
    assert driver.output == MAX_TIMESTAMP


@pytest.mark.guarantee("G7", section="4.5")
def test_what_has_not_begun_holds_the_watermark() -> None:
    driver = IntervalDriver(Begins())
    assert driver.output == MIN_TIMESTAMP
    driver.commit_all()
    for send in driver.take(SendDelivery):
        driver.handle(Acknowledged(send.delivery.token))
    assert driver.output == MAX_TIMESTAMP


def test_a_beginning_that_fails_is_tried_again() -> None:
    begins = Begins()
    begins.fails = 2
    driver = IntervalDriver(begins)
    for _ in range(2):
        driver.pass_time(60_000_000)
    assert said(driver) == ["first begins"]


class Feeds(mw.Computation[tuple[str, str], int]):
    """Each key reads two records at a time. "hold N": its records are from N on. "slow" begins after a second."""

    _feeds = True

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        self.again(ctx, int(record.value[1].removeprefix("hold ")), 1_000_000 if ctx.key == "slow" else 0)

    def process_timer(self, ctx: mw.Context[int], timer: mw.Timer) -> None:
        for number in range(2):
            ctx.produce("out", f"{ctx.key} {ctx.state + number}", timestamp=mw.Timestamp(ctx.state + number))
        self.again(ctx, ctx.state + 2)

    def again(self, ctx: mw.Context[int], hold: int, after: int = 0) -> None:
        ctx.state = hold
        ctx.set_timer(mw.Timestamp(ctx.now + after), domain=mw.TimeDomain.PROCESSING_TIME, hold=mw.Timestamp(hold))


@pytest.mark.guarantee("G13", section="4.5")
def test_a_full_outbox_takes_what_holds_the_watermark_alone() -> None:
    driver = IntervalDriver(Feeds(), settings=IntervalSettings(outbox_records=1, batch_records=1))
    driver.deliver(("slow", "hold 10", 10), watermark=5)
    driver.deliver(("quick", "hold 500", 10))
    driver.watermark(MAX_TIMESTAMP)
    assert read(driver) == {500: [500, 501]}
    driver.pass_time(1_000_000)
    for first in (10, 12, 14):
        # The records of "quick" fill the outbox. What "slow" reads next holds the watermark below them (G8).
        assert read(driver) == {first: [first, first + 1]}
        ack(driver, first)
    assert read(driver).keys() == {16}
    ack(driver, 500)
    assert read(driver) == {}  # the records of "slow" fill it, and hold the watermark


def read(driver: IntervalDriver) -> dict[int, list[int]]:
    """What was read since the last call: the times of a delivery's records, by the first of them."""
    driver.commit_all()
    found: dict[int, list[int]] = {}
    for send in driver.take(SendDelivery):
        times = list(send.delivery.timestamps)
        for first in range(0, len(times), 2):
            found[times[first]] = times[first : first + 2]
        TOKENS[times[0]] = send.delivery.token
    return found


class Discovers(Feeds):
    """A split of which nothing is known holds the watermark before its first record."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state = 1_000
        ctx.set_timer(ctx.now, domain=mw.TimeDomain.PROCESSING_TIME, hold=record.timestamp)


@pytest.mark.guarantee("G13", section="4.5")
@pytest.mark.guarantee("G8", section="4.5")
def test_many_new_splits_read_one_by_one_once_the_outbox_is_full() -> None:
    """All of them hold the watermark at one time, so each of them must read in the end."""
    driver = IntervalDriver(Discovers(), settings=IntervalSettings(outbox_records=10, batch_records=4))
    for split in range(100):
        driver.deliver((f"split {split}", "hold 10", 10))
    driver.watermark(MAX_TIMESTAMP)
    assert records_read(driver) <= 10 + 4 * 2 + 2
    for _ in range(5):
        driver.pass_time(100_000)
        assert records_read(driver) == 2  # no ACK comes: consumers may wait for the watermark
    for _ in range(200):
        driver.pass_time(100_000)
        records_read(driver)
    assert driver.output == 1_000  # each has read, and only those before the outbox was full more than once
    assert driver.core.state.outbox.unacked.records <= 2 * 100 + 10


def records_read(driver: IntervalDriver) -> int:
    """How many records were read since the last call."""
    driver.commit_all()
    return sum(len(send.delivery.timestamps) for send in driver.take(SendDelivery))


@pytest.mark.guarantee("G8", section="4.1")
def test_a_source_reads_no_more_while_its_topology_drains() -> None:
    driver = IntervalDriver(Feeds(), settings=IntervalSettings(outbox_records=1, batch_records=1))
    driver.deliver(("a", "hold 10", 10))
    driver.watermark(MAX_TIMESTAMP)
    assert read(driver).keys() == {10}
    driver.handle(CatalogChanged(frozenset({INJECTOR}), drains=True))
    ack(driver, 10)
    driver.pass_time(1_000_000)
    assert read(driver) == {}
    assert driver.core.state.intake.pending.min() == MAX_TIMESTAMP
    driver.handle(CatalogChanged(frozenset({INJECTOR})))
    assert read(driver).keys() == {12}


@pytest.mark.guarantee("G8", section="4.5")
def test_a_hold_of_a_source_is_explained_by_its_split() -> None:
    driver = IntervalDriver(Feeds(), settings=IntervalSettings(outbox_records=1, batch_records=1))
    driver.deliver(("slow", "hold 1767268800000000", 10), watermark=5)
    driver.watermark(MAX_TIMESTAMP)
    driver.commit_all()
    kind, text = driver.core.explain_hold()
    assert kind == HoldKind.HOLD_KIND_STATE
    assert text.startswith("split 'slow' has been read up to 2026-01-01T12:00:00"), text


def test_a_failing_source_is_not_to_be_given_up() -> None:
    begins = Begins()
    begins.fails = 9
    driver = IntervalDriver(begins)
    failures = failures_of(driver.core, driver.now)
    assert failures is not None
    text = failure_text(failures.oldest[0], 0)
    assert "see whether the source can be reached" in text
    assert "mw.dead_letter" not in text


def test_nothing_begins_while_its_topology_drains() -> None:
    driver = IntervalDriver(Begins(), early=[CatalogChanged(frozenset(), drains=True)])
    assert driver.commit_all() == 0


@pytest.mark.guarantee("G7", section="4.5")
def test_a_hold_that_comes_too_late_keeps_the_watermark() -> None:
    """Its records are older than the watermark: it stays where it is, until the split has passed it."""
    driver = IntervalDriver(Feeds(), settings=IntervalSettings(outbox_records=1, batch_records=1))
    driver.deliver(("a", "hold 500", 10), watermark=10)
    driver.watermark(MAX_TIMESTAMP)
    assert read(driver).keys() == {500}
    driver.deliver(("slow", "hold 10", MAX_TIMESTAMP - 1))
    for first in (500, 502, 504):
        assert read(driver).keys() == ({first} if first > 500 else set())
        ack(driver, first)
    assert driver.output == 500


TOKENS: dict[int, int] = {}
"""The tokens of deliveries, by the time of their first record."""


def ack(driver: IntervalDriver, first: int) -> None:
    driver.handle(Acknowledged(TOKENS.pop(first)))
