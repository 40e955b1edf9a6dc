"""The type of a step's results is what its function is annotated to return. mypy checks each annotation here."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Self

import msgspec
import pytest

import millwheel as mw
from millwheel import windows
from millwheel.testing import TopologyHarness

NOON = mw.Timestamp(1_700_000_000_000_000)
SECOND = mw.seconds(1)


class Order(msgspec.Struct, frozen=True):
    id: int


class Payment(msgspec.Struct, frozen=True):
    order: int


class Paid(msgspec.Struct, frozen=True):
    order: int
    paid: bool

    @classmethod
    def of(cls, order: Order, payment: Payment | None) -> Self:
        return cls(order.id, payment is not None)


def paid_of(order: Order, payment: Payment | None) -> Paid:
    return Paid.of(order, payment)


def ids(orders: list[Order]) -> list[int]:
    return [order.id for order in orders]


def missing(orders: list[Order], payments: list[Payment]) -> list[int]:
    return [order.id for order in orders if not payments]


def count(so_far: int, order: Order) -> tuple[int, list[int]]:
    return so_far + 1, [so_far + 1]


def name(order: Order) -> str:
    return f"order {order.id}"


async def look_up(order: Order) -> str:
    return name(order)


def looked_up(order: Order) -> Awaitable[str]:
    return look_up(order)


class Shop:
    """A program with an input of orders and one of payments."""

    def __init__(self) -> None:
        self.topology = mw.Topology("shop")
        self.source = self.topology.source("orders", Order)
        self.orders = self.source.key_by("id")
        self.payments = self.topology.source("payments", Payment).key_by("order")
        self.windowed = self.orders.window(windows.tumbling(SECOND))


PAID: list[Callable[[Shop], mw.Stream[Paid]]] = [
    lambda shop: shop.orders.join("out", shop.payments, paid_of),
    lambda shop: shop.orders.join("out", shop.payments, Paid.of),
    lambda shop: shop.orders.join_within("out", shop.payments, paid_of),
    lambda shop: shop.orders.join_as_of("out", shop.payments, paid_of),
    lambda shop: shop.orders.join_latest("out", shop.payments, paid_of, outer=True),
    lambda shop: shop.orders.join_tables("out", shop.payments, paid_of, outer="left"),
    lambda shop: shop.windowed.join("out", shop.payments, paid_of),
    lambda shop: shop.windowed.join("out", shop.payments, lambda one, other: paid_of(one, other), Paid),
]
NUMBERS: list[Callable[[Shop], mw.Stream[int]]] = [
    lambda shop: shop.windowed.cogroup("out", shop.payments, missing),
    lambda shop: shop.windowed.cogroup("out", (shop.payments, shop.orders), lambda one, two, three: [len(three)], int),
    lambda shop: shop.orders.complete("out", ids),
    lambda shop: shop.orders.update("out", 0, count),
    lambda shop: shop.orders.ordered_by_time().update("out", 0, count),
]
TEXTS: list[Callable[[Shop], mw.Stream[str]]] = [
    lambda shop: shop.orders.timeout("out", SECOND, name),
    lambda shop: shop.orders.timeout("out", SECOND, name, domain=mw.TimeDomain.PROCESSING_TIME),
    lambda shop: shop.source.enrich("out", look_up),
    lambda shop: shop.orders.enrich("out", look_up),
    lambda shop: shop.source.enrich("out", looked_up),
]


@pytest.mark.parametrize(
    ("build", "result"),
    [*((build, Paid) for build in PAID), *((build, int) for build in NUMBERS), *((build, str) for build in TEXTS)],
)
def test_the_function_says_the_type_of_the_results(build: Callable[[Shop], mw.Stream[Any]], result: type) -> None:
    shop = Shop()
    assert build(shop).record_type is result
    assert shop.topology.plan().streams["out"].type is result
    assert shop.topology.validate() == []


def test_what_is_joined_without_a_type_has_the_type() -> None:
    shop = Shop()
    paid: mw.Stream[Paid] = shop.orders.join_within("paid", shop.payments, Paid.of, outer="left")
    late = paid.filter(lambda one: not one.paid).named("late")
    assert late.record_type is Paid
    harness = TopologyHarness(shop.topology)
    harness.send("orders", Order(1), timestamp=NOON)
    harness.send("orders", Order(2), timestamp=NOON)
    harness.send("payments", Payment(2), timestamp=NOON)
    harness.finish()
    assert harness.values("late") == [Paid(1, paid=False)]


def plain(order, payment):  # type: ignore[no-untyped-def]
    return paid_of(order, payment)


def listed(orders: list[Order]) -> list:  # type: ignore[type-arg]
    return ids(orders)


MISTAKES: list[tuple[Callable[[Shop], Any], str]] = [
    (lambda shop: shop.orders.join("out", shop.payments, plain), "annotate plain to return its result"),
    (lambda shop: shop.orders.join_within("out", shop.payments, plain), "annotate plain to return its result"),
    (lambda shop: shop.orders.join_as_of("out", shop.payments, plain), "annotate plain to return its result"),
    (lambda shop: shop.orders.join_latest("out", shop.payments, plain), "annotate plain to return its result"),
    (lambda shop: shop.orders.join_tables("out", shop.payments, plain), "annotate plain to return its result"),
    (lambda shop: shop.windowed.cogroup("out", shop.payments, plain), "annotate plain to return the list of its"),
    (lambda shop: shop.windowed.join("out", shop.payments, plain), "annotate plain to return its result"),
    (lambda shop: shop.orders.complete("out", listed), "annotate listed to return the list of its results"),
    (
        lambda shop: shop.orders.update("out", 0, lambda state, _: (state, [state])),
        "to return tuple[the next state, the list of its results]",
    ),
    (lambda shop: shop.orders.timeout("out", SECOND, lambda order: order.id), "<lambda> to return its result"),
    (lambda shop: shop.source.enrich("out", lambda order: look_up(order)), "<lambda> to return its result"),
    (lambda shop: shop.orders.enrich("out", lambda order: look_up(order)), "<lambda> to return its result"),
]


@pytest.mark.parametrize(("build", "message"), MISTAKES)
def test_a_function_without_an_annotation_needs_the_type(build: Callable[[Shop], Any], message: str) -> None:
    with pytest.raises(mw.UsageError, match="nothing says the type of the results of step 'out'") as raised:
        build(Shop())
    assert re.search(re.escape(message), str(raised.value))


def test_a_first_state_of_none_needs_the_type_of_states() -> None:
    def number(_: Any, order: Order) -> tuple[Any, list[int]]:
        return order.id, [order.id]

    def stated(_: int | None, order: Order) -> tuple[int | None, list[int]]:
        return order.id, [order.id]

    with pytest.raises(mw.UsageError, match=r"type of the states of step 'out'.*parameter of .*<lambda>, .*state="):
        Shop().orders.update("out", None, lambda _, order: (order.id, [order.id]), int)
    builds: list[Callable[[Shop], mw.Stream[int]]] = [
        lambda shop: shop.orders.update("out", None, lambda _, order: (order.id, [order.id]), int, state=int),
        lambda shop: shop.orders.update("out", None, stated),
        lambda shop: shop.orders.update("out", None, number),
    ]
    for build in builds:
        shop = Shop()
        build(shop)
        harness = TopologyHarness(shop.topology)
        harness.send("orders", Order(7), timestamp=NOON)
        assert harness.values("out") == [7]
