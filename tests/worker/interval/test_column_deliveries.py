"""Records that come as columns have the effects of single ones (4.2, 6.1.1; G1, G13)."""

from __future__ import annotations

from array import array

import pyarrow as pa
import pytest

import millwheel as mw
from millwheel.model.deliveries import PositionIds, Sender
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.columns import RecordColumns
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.messages import AnswerDelivery, CheckSequence, Delivery, SequenceChecked
from tests.worker.interval.column_windows import Results, driver_of, panes
from tests.worker.interval.driver import INJECTOR, IntervalDriver


class Copies(mw.Computation[tuple[str, str], int]):
    """Counts the records of a key."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[tuple[str, str]]) -> None:
        ctx.state += 1


def deliver(driver: IntervalDriver, keys: str, first: int = 0, key: str = "key") -> Delivery:
    """Deliver a record for each letter, as columns."""
    batch = pa.record_batch({"key": list(keys), "raw": [one.encode() for one in keys]})
    records = RecordColumns(batch, array("q", range(len(keys))), key)
    delivery = Delivery(
        IncarnationId("test.1"), "test.1.j1", "in", Sender("injector/in/p", 1, None, INJECTOR),
        PositionIds("in/p", 0, range(first, first + len(keys)), (), True), records.keys(), records,
        records.timestamps, first + 1,
    )  # fmt: skip
    driver.handle(delivery)
    for check in driver.take(CheckSequence):
        driver.handle(SequenceChecked(check.sequence, True))
    return delivery


@pytest.mark.guarantee("G1", section="6.1.1")
def test_columns_are_added_to_panes_once() -> None:
    driver = driver_of(Results())
    deliver(driver, "abca")
    deliver(driver, "abca")
    driver.commit_all()
    deliver(driver, "caab", 2)  # it overlaps the first one in part
    driver.commit_all()
    assert panes(driver) == {("a", 10): 3, ("b", 10): 2, ("c", 10): 1}
    assert driver.state.intake.bytes == driver.state.intake.records == 0
    assert not [one for one in driver.take(AnswerDelivery) if one.message.startswith("positions")]


@pytest.mark.guarantee("G13")
def test_parts_of_columns_leave_the_intake_completely() -> None:
    driver = IntervalDriver(Copies(), settings=IntervalSettings(batch_records=2), outputs={})
    deliver(driver, "abcde")
    while driver.state.intake.records:
        driver.commit()
    assert driver.state.intake.bytes == 0


@pytest.mark.guarantee("G13")
def test_a_part_that_is_admitted_keeps_no_columns() -> None:
    """The records of a part are counted, and the columns of the whole delivery are not."""
    driver = IntervalDriver(Copies(), outputs={})
    deliver(driver, "ab")
    driver.commit_all()
    part = deliver(driver, "bcde", 1)
    assert driver.state.intake.records == 3
    assert isinstance(part.values, list)
    assert part.keys == [b"b", b"c", b"d", b"e"]
    driver.commit_all()
    assert driver.state.intake.bytes == 0


def test_keys_of_bytes_are_looked_at() -> None:
    driver = driver_of(Results())
    batch_keys = deliver(driver, "ab", key="raw")
    assert list(batch_keys.keys) == [b"a", b"b"]
    bad = pa.record_batch({"raw": [b"\xff", b"b"]})
    records = RecordColumns(bad, array("q", [1, 2]), "raw")
    driver.handle(
        Delivery(
            IncarnationId("test.1"),
            "test.1.j1",
            "in",
            Sender("injector/in/p", 1, None, INJECTOR),
            PositionIds("in/p", 0, range(10, 12), (), True),
            records.keys(),
            records,
            records.timestamps,
            9,
        )
    )
    assert any("0xFF" in one.message for one in driver.take(AnswerDelivery))
