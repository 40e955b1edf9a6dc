"""Joins within a time: orders with their payments, and orders that nobody has paid.

A payment counts if it comes within an hour after its order. ``outer="left"`` also produces the orders without one, when
the low watermark shows that none can come. Both results are streams of their own, without a further computation.
"""

from __future__ import annotations

import msgspec

import millwheel as mw

__all__ = ["Bill", "Order", "Payment", "payments"]


class Order(msgspec.Struct, frozen=True):
    """Something is ordered."""

    order: int
    cents: int


class Payment(msgspec.Struct, frozen=True):
    """Something is paid."""

    order: int
    method: str


class Bill(msgspec.Struct, frozen=True):
    """An order and how it was paid. None: nobody has paid it in time."""

    order: int
    cents: int
    method: str | None


def bill(order: Order, payment: Payment | None) -> Bill:
    """An order, with its payment if there is one."""
    return Bill(order.order, order.cents, payment.method if payment else None)


payments = mw.Topology("payments")
orders = payments.source("orders", Order).key_by("order")
paid_by = payments.source("payments", Payment).key_by("order")
bills = orders.join_within("bills", paid_by, bill, after=mw.hours(1), outer="left")
paid, unpaid = bills.split(lambda one: one.method is not None)
paid.named("paid")
unpaid.named("unpaid")
