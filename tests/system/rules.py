"""Payments joined with a whole table of rules: with its rows so far, and with the rows of each payment's time."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

import millwheel as mw


class Rule(msgspec.Struct, frozen=True):
    id: int
    version: int


class Payment(msgspec.Struct, frozen=True):
    number: int
    card: int


class Checked(msgspec.Struct, frozen=True):
    number: int
    table: dict[str, int]


def check(payment: Payment, table: Mapping[str, Rule]) -> Checked:
    return Checked(payment.number, {key: rule.version for key, rule in table.items()})


def off(rule: Rule) -> bool:
    return rule.version % 5 == 0


rules = mw.Topology("rules")
changes = rules.source("changes", Rule, injectors=["one"]).key_by("id")
payments = rules.source("payments", Payment, injectors=["one"]).key_by("card")
payments.join_broadcast("now", changes, check, removes=off, copies=8)
payments.join_broadcast("then", changes, check, removes=off, copies=8, as_of=True)
