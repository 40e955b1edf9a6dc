"""Each order is paid or unpaid, and never both."""

from __future__ import annotations

from random import Random

import millwheel as mw
from examples.gallery.payments import Bill, Order, Payment, payments
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import Sent, at, play


def test_an_order_is_paid_within_an_hour_or_not_at_all() -> None:
    chance = Random(3)
    records, paid, unpaid = list[Sent](), list[Bill](), list[Bill]()
    for number in range(100):
        ordered, cents, method = chance.randrange(20_000), chance.randrange(1, 9_000), chance.choice(["card", "cash"])
        records.append(("orders", Order(number, cents), at(ordered)))
        delay = chance.choice([0, 1_800, 3_600, 3_601, 5_000, None])
        if delay is not None:
            records.append(("payments", Payment(number, method), at(ordered + delay)))
        in_time = delay is not None and delay <= 3_600
        (paid if in_time else unpaid).append(Bill(number, cents, method if in_time else None))
    harness = play(payments, records)
    assert sorted(harness.values("paid"), key=lambda one: one.order) == paid
    assert sorted(harness.values("unpaid"), key=lambda one: one.order) == unpaid
    assert min(len(paid), len(unpaid)) > 20


def test_an_unpaid_order_is_known_when_its_hour_has_passed() -> None:
    harness = TopologyHarness(payments)
    harness.send("orders", Order(1, 500), at(0))
    harness.advance(at(3_600))
    assert harness.values("unpaid") == []  # a payment may still come
    harness.advance(mw.Timestamp(at(3_600) + 1))
    assert harness.values("unpaid") == [Bill(1, 500, None)]
