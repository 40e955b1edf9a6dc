"""Fraud by rules that change: each payment is compared with the rule that held at its time.

Rules are a stream like any other, keyed by the country that they are for. ``join_as_of`` takes the newest rule up to
the payment's timestamp, whatever arrived first. It waits until the low watermarks of both streams have passed the
payment. So whatever injects rules must advance its low watermark, also while no rule changes.
"""

from __future__ import annotations

import msgspec

import millwheel as mw

__all__ = ["Alert", "Payment", "Rule", "fraud_rules"]


class Payment(msgspec.Struct, frozen=True):
    """Somebody pays by card."""

    card: str
    country: str
    cents: int


class Rule(msgspec.Struct, frozen=True):
    """From its timestamp on, larger payments in the country are suspicious."""

    country: str
    most_cents: int


class Alert(msgspec.Struct, frozen=True):
    """A payment and the rule that it breaks. None: its country has no rule yet."""

    payment: Payment
    rule: Rule | None


fraud_rules = mw.Topology("fraud-rules")
payments = fraud_rules.source("payments", Payment).key_by("country")
rules = fraud_rules.source("rules", Rule).key_by("country")
checked = payments.join_as_of("checked", rules, Alert, Alert, outer=True)
checked.filter(lambda one: one.rule is None or one.payment.cents > one.rule.most_cents).named("alerts")
