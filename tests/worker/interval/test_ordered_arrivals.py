"""An interval takes another interval's records in order, during look-ups and also when it is full (G15)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel.model.incarnation import IncarnationId
from millwheel.model.keys import ALL_KEYS, KeyInterval
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import PositionIds, Sender
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import (
    AnswerDelivery,
    CheckSequence,
    Delivery,
    DeliveryOrder,
    GroupWatermarks,
    SequenceChecked,
    Tick,
)
from tests.worker.interval.driver import IntervalDriver
from tests.worker.log.driver import JOURNAL, LOG, SMALL, STREAM, LogDriver

ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
OUT_OF_ORDER = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER


class Keeps(mw.Computation[tuple[str, str], list[str]]):
    """Keeps each record, and forwards it."""

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state.append(record.value[1])
        ctx.produce("out", record.value[1])


def made(
    number: int, *records: tuple[str, str, int], after: int | None = None, pending: int | None = None, **more: Any
) -> Delivery:
    """The delivery ``number`` of the interval u.1.j1, with (key, what, timestamp) records."""
    stamps = [stamp for _, _, stamp in records]
    sequence = more.pop("sequence", "u.1.j1")
    order = DeliveryOrder(number, number - 1 if after is None else after, min(stamps) if pending is None else pending)
    return Delivery(
        IncarnationId("test.1"), "test.1.j1", "in", Sender("u.1.j1", 3, ALL_KEYS, "u.1"),
        PositionIds(sequence, 0, [number * 100 + index for index in range(len(records))]),
        [key.encode() for key, _, _ in records],
        [msgspec.msgpack.encode((key, what)) for key, what, _ in records],
        stamps, number, None, order,
    )  # fmt: skip


def kept(driver: IntervalDriver, key: str) -> Any:
    driver.commit_all()
    cell = driver.state.cells.get(key.encode())
    return [] if cell is None or not cell.encoded else driver.state.program.state.decode(cell.encoded)


def outcomes(driver: IntervalDriver) -> list[Any]:
    return [(one.delivery.token, one.outcome) for one in driver.take(AnswerDelivery)]


def known(driver: IntervalDriver, *sequences: str) -> None:
    """Answer that the senders' sequences are alive."""
    for check in driver.take(CheckSequence):
        driver.handle(SequenceChecked(check.sequence, True))


@pytest.mark.guarantee("G15", section="6.1.1")
def test_what_is_not_looked_up_waits_behind_what_is() -> None:
    """A child first sends inherited records under its parent's sequence, then records under its own sequence, which
    the receiver knows."""
    driver = IntervalDriver(Keeps())
    driver.handle(made(1, ("other", "own", 1)))
    known(driver)
    driver.commit_all()
    driver.handle(made(2, ("key", "inherited", 1), sequence="u.1.j0"))
    driver.handle(made(3, ("key", "own", 1)))
    assert kept(driver, "key") == []
    known(driver)
    assert kept(driver, "key") == ["inherited", "own"]
    assert [outcome for _, outcome in outcomes(driver)] == [ACKED] * 3


@pytest.mark.guarantee("G15", section="4.1")
def test_behind_a_delivery_that_is_refused_nothing_is_taken() -> None:
    """Regression: a record that holds the watermark was accepted without room.

    It overtook earlier productions of its key.
    """
    driver = IntervalDriver(Keeps(), settings=IntervalSettings(queue_records=1))
    driver.watermark(1)
    driver.handle(made(1, ("key", "a", 500)))
    known(driver)
    driver.handle(made(2, ("key", "b", 500)))
    driver.handle(made(3, ("key", "holds the watermark", 1)))
    assert outcomes(driver) == [(2, FULL), (3, OUT_OF_ORDER)]
    driver.handle(made(4, ("key", "b", 500), after=1, pending=1))
    driver.handle(made(5, ("key", "holds the watermark", 1)))
    assert kept(driver, "key") == ["a", "b", "holds the watermark"]


@pytest.mark.guarantee("G8", section="4.5")
def test_feedback_is_taken_with_what_stands_before_it() -> None:
    """A record that closes a cycle is always accepted: it would wait for itself.

    So are its sender's earlier records.
    """
    driver = IntervalDriver(Keeps(), settings=IntervalSettings(queue_records=1))
    driver.state.config = replace(driver.state.config, feedback=frozenset({"again"}))
    driver.handle(made(1, ("key", "a", 500)))
    known(driver)
    driver.handle(made(2, ("key", "b", 500)))
    assert outcomes(driver) == [(2, FULL)]
    late = made(3, ("key", "b", 500), after=1)
    assert late.order is not None
    late.order = replace(late.order, streams=("again",))
    driver.handle(late)
    assert kept(driver, "key") == ["a", "b"]


@pytest.mark.guarantee("G15", section="4.1")
def test_a_record_that_holds_follows_its_keys_earlier_ones() -> None:
    """With a full outbox only such a record runs, after earlier productions of the sender's keys for the same keys."""
    driver = IntervalDriver(Keeps(), settings=IntervalSettings(outbox_records=1))
    driver.deliver(("other", "fills the outbox", 1))
    driver.commit_all()
    driver.handle(made(1, ("key", "older", 500), ("spilled", "ahead", 500)))
    known(driver)
    driver.handle(made(2, ("key", "younger", 100)))
    driver.watermark(100)
    assert kept(driver, "key") == ["older", "younger"]
    assert kept(driver, "spilled") == []


@pytest.mark.guarantee("G15", section="4.3")
@pytest.mark.parametrize("held", [False, True])
def test_a_log_takes_all_of_a_delivery_or_nothing(held: bool) -> None:
    log = LogDriver(SMALL, groups=frozenset({"u.1"}))

    def send(number: int, after: int, pending: int, *stamps: int) -> None:
        ids = PositionIds("u.1.j1", 0, [number * 100 + index for index in range(len(stamps))])
        sender, order = Sender("u.1.j1", 3, ALL_KEYS, "u.1"), DeliveryOrder(number, after, pending)
        values = [b"x" * (850 if number < 3 else 10)] * len(stamps)
        keys = [b""] * len(stamps)
        log.handle(Delivery(LOG, JOURNAL, STREAM, sender, ids, keys, values, list(stamps), number, None, order))

    log.handle(GroupWatermarks({"u.1": 400}))
    send(1, 0, 500, 500)
    send(2, 1, 500, 500)
    log.run()
    send(3, 2, 400 if held else 450, 500, 450)
    send(4, 3, 400, 400)
    log.run()
    answers = [(one.delivery.token, one.outcome) for one in log.answers[2:]]
    assert answers == ([(3, ACKED), (4, ACKED)] if held else [(3, FULL), (4, OUT_OF_ORDER)])


@pytest.mark.guarantee("G13", section="6.1.1")
def test_waiting_deliveries_are_bounded_in_bytes_for_all_senders() -> None:
    """Regression: only deliveries of one sequence were bounded, and each journal has a sequence."""
    driver = IntervalDriver(Keeps(), settings=IntervalSettings(queue_bytes=1_000))
    for number in range(1, 6):
        one = made(number, ("key", "x" * 400, 1), after=0, sequence=f"u.1.j{number}")
        one.sender = replace(one.sender, name=f"u.1.j{number}", keys=KeyInterval(bytes([number]), bytes([number + 1])))
        driver.handle(one)
    assert outcomes(driver) == [(3, FULL), (4, FULL), (5, FULL)]
    known(driver, "u.1.j1", "u.1.j2")
    driver.commit_all()
    assert outcomes(driver) == [(1, ACKED), (2, ACKED)]


def from_sender(number: int, *records: tuple[str, str, int], origin: str, **more: Any) -> Delivery:
    """A delivery as from ``made``, of the interval with this letter."""
    one = made(number, *records, sequence=f"u.1.{origin}", **more)
    one.sender = replace(one.sender, name=f"u.1.{origin}", keys=KeyInterval(origin.encode(), (origin + "z").encode()))
    return one


@pytest.mark.guarantee("G13", section="4.5")
def test_holding_senders_enter_a_full_interval_one_by_one() -> None:
    """Regression: all senders were admitted with all records, as soon as each had one old record at its end."""
    driver = IntervalDriver(Keeps(), settings=IntervalSettings(queue_records=1))
    for origin in "abc":
        driver.handle(from_sender(1, (origin, "first", 500), origin=origin, pending=500))
        known(driver, f"u.1.{origin}")
        driver.commit_all()
    driver.watermark(100)
    driver.deliver(("other", "fills the queue", 500))
    outcomes(driver)
    for origin in "abc":
        driver.handle(from_sender(2, (origin, "ahead", 500), origin=origin, pending=100))
        driver.handle(from_sender(3, (origin, "holds", 100), origin=origin, pending=100))
    assert driver.state.intake.records == 3
    refused = [(token, outcome) for token, outcome in outcomes(driver) if outcome != ACKED]
    assert refused == [(2, FULL), (3, OUT_OF_ORDER)] * 2
    driver.commit_all()
    for origin in "bc":
        driver.handle(from_sender(4, (origin, "ahead", 500), origin=origin, after=1, pending=100))
        driver.handle(from_sender(5, (origin, "holds", 100), origin=origin, pending=100))
        driver.commit_all()
    assert [kept(driver, origin) for origin in "abc"] == [["first", "ahead", "holds"]] * 3


class FailsTwice(Keeps):
    """Fails twice at the value "fails"."""

    attempts = 0

    def process_record(self, ctx: mw.Context[list[str]], record: mw.Record[tuple[str, str]]) -> None:
        if record.value[1] == "fails" and self.attempts < 2:
            self.attempts += 1
            raise OSError("a service that is back a moment later")
        super().process_record(ctx, record)


@pytest.mark.guarantee("G8", section="4.5")
def test_a_turn_ends_though_its_records_neighbours_wait_for_room() -> None:
    """The outbox is full, so what does not hold the watermark stays in the queue."""
    driver = IntervalDriver(FailsTwice(), settings=IntervalSettings(queue_records=1, outbox_records=2))
    for origin in "ab":
        driver.handle(from_sender(1, (origin, "first", 500), origin=origin, pending=500))
        known(driver, f"u.1.{origin}")
        driver.commit_all()
    driver.watermark(100)
    driver.deliver(("other", "fills the queue", 500))
    holds = ("a", "holds", 100), ("aa", "fails", 500), ("aa", "ahead", 500)
    driver.handle(from_sender(2, *holds, origin="a", pending=100))
    driver.commit_all()
    for _ in range(20):
        driver.now += 1_000_000
        driver.handle(Tick())
        driver.commit_all()
    outcomes(driver)
    for token in (3, 4):
        driver.handle(from_sender(token, ("b", "holds", 100), origin="b", after=1, pending=100))
        driver.commit_all()
    assert (3, ACKED) in outcomes(driver)


@pytest.mark.guarantee("G13", section="4.3")
def test_holding_senders_enter_a_full_log_one_by_one() -> None:
    log = LogDriver(SMALL, groups=frozenset({"u.1"}))
    log.handle(GroupWatermarks({"u.1": 400}))

    def send(origin: str, number: int, after: int, size: int = 10) -> None:
        sender = Sender(origin, 3, KeyInterval(origin.encode(), (origin + "z").encode()), "u.1")
        ids, order = PositionIds(origin, 0, [number]), DeliveryOrder(number, after, 400)
        log.handle(Delivery(LOG, JOURNAL, STREAM, sender, ids, [b""], [b"x" * size], [400], number, None, order))

    def answered() -> list[Any]:
        found = [(one.delivery.sender.name, one.delivery.token, one.outcome) for one in log.answers]
        log.answers.clear()
        return found

    for origin in "ab":
        send(origin, 1, 0, 850)
        log.run()
    answered()
    send("a", 2, 1)
    send("b", 2, 1)
    assert answered() == [("b", 2, FULL)]
    log.run()
    send("b", 3, 1)
    log.run()
    assert answered() == [("a", 2, ACKED), ("b", 3, ACKED)]


@pytest.mark.guarantee("G8", section="4.5")
def test_a_sender_is_notified_at_once_of_an_earlier_commit() -> None:
    """A former owner had committed the first of two records.

    The second waits for room in the outbox. Regression: the sender held the watermark for both. Full consumers waited
    for that, and emptied no outbox.
    """
    settings = IntervalSettings(outbox_records=1, batch_records=1)
    both = ("k", "first", 17), ("k", "second", 34)
    before = IntervalDriver(Keeps(), settings=settings)
    before.watermark(17)
    before.handle(made(1, *both))
    known(before)
    before.commit()
    driver = IntervalDriver(Keeps(), settings=settings, entries=list(before.entries))
    driver.watermark(17)
    driver.commit_all()
    assert driver.outbox_full
    again = replace(made(2, *both, after=0), ids=PositionIds("u.1.j1", 0, [100, 101]))
    driver.handle(again)
    known(driver)
    (answer,) = [one for one in driver.take(AnswerDelivery) if one.delivery is again]
    assert (answer.outcome, list(answer.indexes)) == (ACKED, [1])
    assert driver.state.intake.records == 1
