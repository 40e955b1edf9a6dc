"""A program of steps for a strict type checker, which must report each line with ``error``."""

from __future__ import annotations

import msgspec

import millwheel as mw
from millwheel import windows


class Order(msgspec.Struct):
    id: int
    item: str


class Payment(msgspec.Struct):
    order: int
    cents: int


class Refund(msgspec.Struct):
    order: int
    why: str


HOUR = mw.hours(1)
shop = mw.Topology("shop")
source = shop.source("orders", Order)
orders = source.key_by(lambda order: order.id)
payments = shop.source("payments", Payment).key_by("order")
refunds = shop.source("refunds", Refund).key_by(lambda refund: refund.order)
hours = orders.window(windows.tumbling(HOUR))

source.key_by(lambda order: order.number)  # error: attr-defined
source.filter(lambda order: order.cents > 3)  # error: attr-defined
source.map(lambda order: order.item).filter(lambda item: item.id > 3)  # error: attr-defined
source.latest("x")  # error: attr-defined
orders.ordered_by_time().window(windows.tumbling(HOUR))  # error: attr-defined
source.peek(print).filter(lambda order: order.cents > 3)  # error: attr-defined
some: mw.Stream[Order] = orders.throttle("some", 3, HOUR, excess="others")
some.map(lambda order: order.why)  # error: attr-defined
orders.until("last", lambda order: order.item == "")
orders.until("end", lambda order: order.cents > 3)  # error: attr-defined
changes: mw.Stream[mw.Change[Order]] = orders.changes("changes", keep=HOUR)
changes.filter(lambda change: change.value.item == "" and change.weight > 0)
changes.filter(lambda change: change.value.cents > 3)  # error: attr-defined
changes.filter(lambda change: change.cents > 3)  # error: attr-defined
in_order: mw.Stream[mw.Change[Order]] = orders.ordered_by_time().changes("in-order")
in_order.map(lambda change: change.value.why)  # error: attr-defined


def pair(order: Order, payment: Payment) -> str:
    return f"{order.item}: {payment.cents}"


def either(order: Order | None, payment: Payment | None) -> str:
    return f"{order.item if order else ''}: {payment.cents if payment else 0}"


def left(order: Order, payment: Payment | None) -> str:
    return either(order, payment)


bills: mw.Stream[str] = orders.join("bills", payments, pair, keep=HOUR)
orders.join("a", refunds, pair)  # error: arg-type
orders.join_within("b", payments, lambda order, payment: f"{order.item} {payment.cents}", str, after=HOUR)
orders.join_within("c", payments, lambda order, payment: payment.why, str, after=HOUR)  # error: attr-defined
orders.join_within("d", payments, left, after=HOUR, outer="left")
orders.join_within("e", payments, pair, after=HOUR, outer="left")  # error: call-overload
orders.join_within("f", payments, left, after=HOUR, outer="both")  # error: call-overload
orders.join_as_of("g", payments, left, outer=True)
orders.join_as_of("h", payments, pair, outer=True)  # error: arg-type
orders.join_latest("i", payments, pair)
orders.join_latest("j", payments, pair, outer=True)  # error: arg-type
orders.join_tables("k", payments, either, outer="both")
orders.join_tables("l", payments, left, outer="both")  # error: call-overload
orders.join_tables("m", refunds, pair)  # error: arg-type
hours.join("n", payments, left, outer="left")
hours.join("o", payments, pair, outer="left")  # error: call-overload


def unpaid(group: list[Order], paid: list[Payment]) -> list[int]:
    return [order.id for order in group if not paid]


def kept(group: list[Order], paid: list[Payment], sent_back: list[Refund]) -> list[str]:
    return [order.item for order in group if paid and not sent_back]


numbers: mw.Stream[int] = hours.cogroup("p", payments, unpaid)
items: mw.Stream[str] = hours.cogroup("q", (payments, refunds), kept)
hours.cogroup("r", refunds, unpaid)  # error: arg-type
hours.cogroup("s", (refunds, payments), kept).filter(lambda item: item.cents > 3)  # error: attr-defined
