"""A worker counts the deliveries that it refuses, by stream, injector and reason (G13)."""

from __future__ import annotations

from millwheel.model.incarnation import IncarnationId
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import Sender
from millwheel.worker.process.refused_deliveries import RefusedDeliveries, injector_name
from tests.worker.doubles import delivery

FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
NOT_OWNER = DeliveryOutcome.DELIVERY_OUTCOME_NOT_OWNER
INJECTOR = Sender("injector/shop/orders/web-1", 1, None, "injector/shop/orders")
INTERVAL = Sender("count.1.j2", 1, None, IncarnationId("count.1"))


def test_an_injector_is_known_by_the_name_of_its_process() -> None:
    assert injector_name(INJECTOR.name) == "web-1"
    assert injector_name(INTERVAL.name) == "", "the name of a journal is no name that people gave"


def test_refusals_count_by_who_feels_them() -> None:
    refused = RefusedDeliveries()
    some, other = delivery(1), delivery(2)
    some.sender, other.sender = INJECTOR, INTERVAL
    for outcome in (FULL, FULL, NOT_OWNER):
        refused.add(("shop", "count"), some, outcome)
    refused.add(("", ""), other, FULL)  # a log
    stream = some.stream
    assert refused.totals() == {
        ("shop", "count", stream, "web-1", "full"): 2,
        ("shop", "count", stream, "web-1", "not_owner"): 1,
        ("", "", stream, "", "full"): 1,
    }
    refused.keep({("shop", "count"), ("", "")})
    assert len(refused.totals()) == 3
    refused.keep({("", "")})
    assert list(refused.totals()) == [("", "", stream, "", "full")], "a removed computation has no counts"


def test_names_of_senders_fill_no_memory() -> None:
    refused = RefusedDeliveries()
    for number in range(3_000):
        one = delivery(1)
        one.sender = Sender(f"injector/shop/orders/web-{number}", 1, None, "injector/shop/orders")
        refused.add(("shop", "count"), one, FULL)
    totals = refused.totals()
    assert len(totals) <= 1_001
    assert sum(totals.values()) == 3_000, "none is lost: further names are empty"
    assert totals["shop", "count", "", "", "full"] == 2_000
