"""Results of windows for logs go in one buffer, and their entries are as before (4.6, 6.1.2; G2, G9, G12)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import millwheel as mw
from millwheel import agg, windows
from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.packed_values import PackedValues
from millwheel.sdk.scope import FixedRoute, route_of_all
from millwheel.worker.interval import IntervalSettings
from millwheel.worker.interval.entry import decode_entry
from millwheel.worker.messages import Acknowledged, Delivery, Resend, SendDelivery
from tests.worker.interval.column_windows import COLUMNS, opened
from tests.worker.interval.driver import IntervalDriver

LOG = (IncarnationId("log.1"), b"")
COUNT = 700


def counting() -> windows.Aggregate[Any]:
    return windows.Aggregate(windows.tumbling(mw.Duration(10)), agg.count(), output="out")


def fired(packs: bool, settings: IntervalSettings = COLUMNS) -> IntervalDriver:
    """Counts of a window that has ended. The keys differ in their lengths, and some have two records."""
    settings = replace(settings, packed_from=1 if packs else COUNT + 1)
    driver = IntervalDriver(counting(), settings=settings, outputs={})
    binding = driver.state.scope.outputs["out"]
    binding.route, binding.route_all = FixedRoute((LOG,)), route_of_all([], (LOG,))
    records = [(f"k{number}", "", 1) for number in range(COUNT)]
    driver.deliver(*records, *records[::3])
    driver.commit_all()
    driver.watermark(10)
    driver.commit_all()
    return driver


def sent(driver: IntervalDriver) -> list[Delivery]:
    return [one.delivery for one in driver.take(SendDelivery)]


@pytest.mark.guarantee("G2", section="6.1.2")
@pytest.mark.parametrize("batch_bytes", [2 << 20, 40_000, 999])
def test_entries_are_the_same_as_without_packing(batch_bytes: int) -> None:
    settings = IntervalSettings(columns_from=1, batch_bytes=batch_bytes)
    packed, plain = fired(True, settings), fired(False, settings)
    assert packed.entries == plain.entries
    made = [value for one in sent(packed) for value in one.values]
    assert made == [value for one in sent(plain) for value in one.values]
    assert [msgspec.msgpack.decode(value, type=windows.Result[int]).value for value in made] == [
        2 if number % 3 == 0 else 1 for number in range(COUNT)
    ]


@pytest.mark.guarantee("G9", section="6.1.2")
def test_packed_results_are_sent_again_as_they_were() -> None:
    driver = fired(True)
    (delivery,) = sent(driver)
    assert isinstance(delivery.values, PackedValues)
    (after_a_crash,) = sent(opened(driver, counting()))
    assert list(after_a_crash.values) == list(delivery.values)
    driver.handle(Acknowledged(delivery.token, [3, 500]))
    driver.handle(Resend())
    (part,) = sent(driver)
    assert part.values == [delivery.values[3], delivery.values[500]]


@pytest.mark.guarantee("G12", section="6.2")
def test_a_base_has_packed_results_as_rows() -> None:
    driver = fired(True)
    (delivery,) = sent(driver)
    rows = [row for one in driver.state.outbox for row in driver.state.outbox.rows_of(one)]
    assert [row[3] for row in rows] == list(delivery.values)
    assert rows == decode_entry(driver.entries[-1], "it").productions


def test_results_that_a_consumer_reads_are_not_packed() -> None:
    consumer = IncarnationId("c.1")
    driver = IntervalDriver(counting(), settings=COLUMNS, outputs={})
    binding = driver.state.scope.outputs["out"]
    binding.route = lambda value: ((consumer, value.key.encode()),)
    binding.route_all = route_of_all([(consumer, lambda value: value.key.encode())])
    driver.deliver(*((f"k{number}", "", 1) for number in range(COUNT)))
    driver.commit_all()
    driver.watermark(10)
    driver.commit_all()
    (delivery,) = sent(driver)
    assert isinstance(delivery.values, list)
