"""Fraud by rules that change: each payment is compared with all rules that held at its time.

Rules are a stream like any other. ``join_broadcast`` gives each payment the complete table of them, by their ids. With
``as_of`` the table is that of the payment's timestamp. The order of arrival does not matter. A payment waits until the
low watermarks of both streams have passed it. So the injector of rules must advance its low watermark, also while no
rule changes.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

import millwheel as mw

__all__ = ["Alert", "Payment", "Rule", "fraud_rules"]


class Payment(msgspec.Struct, frozen=True):
    """Somebody pays by card."""

    card: str
    country: str
    cents: int


class Rule(msgspec.Struct, frozen=True):
    """From its timestamp on, larger payments are suspicious: those in a country, or all. A rule that is off is none."""

    id: str
    most_cents: int
    country: str = ""
    off: bool = False


class Alert(msgspec.Struct, frozen=True):
    """A payment and the rules that it breaks."""

    payment: Payment
    broken: list[str]


def check(payment: Payment, rules: Mapping[str, Rule]) -> Alert:
    """The rules that a payment breaks, if there are any."""
    meant = [rule for rule in rules.values() if rule.country in ("", payment.country)]
    return Alert(payment, sorted(rule.id for rule in meant if payment.cents > rule.most_cents))


fraud_rules = mw.Topology("fraud-rules")
rules = fraud_rules.source("rules", Rule).key_by("id")
payments = fraud_rules.source("payments", Payment)
checked = payments.join_broadcast("checked", rules, check, as_of=True, removes=lambda rule: rule.off)
checked.filter(lambda alert: bool(alert.broken)).named("alerts")
