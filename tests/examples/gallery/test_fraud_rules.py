"""Each payment meets the rule of its time."""

from __future__ import annotations

from random import Random

import pytest

import millwheel as mw
from examples.gallery.fraud_rules import Alert, Payment, Rule, fraud_rules
from tests.examples.gallery.playing import Sent, at, play


def expected(records: list[Sent]) -> list[Alert]:
    rules, found = dict[str, Rule](), list[Alert]()
    for _, value, _ in sorted(records, key=lambda one: one[2]):
        if isinstance(value, Rule):
            rules[value.country] = value
        else:
            rule = rules.get(value.country)
            found += [Alert(value, rule)] if rule is None or value.cents > rule.most_cents else []
    return found


@pytest.mark.parametrize("chunk", [20, 1_000])
def test_a_payment_meets_the_rule_of_its_time(chunk: int) -> None:
    chance = Random(12)
    moments: list[mw.Timestamp] = [at(second) for second in chance.sample(range(100_000), 200)]
    records = list[Sent]()
    for number, moment in enumerate(moments):
        country = chance.choice(["br", "de", "no"])
        if number % 5:
            records.append(("payments", Payment(f"card-{number}", country, chance.randrange(10_000)), moment))
        else:
            records.append(("rules", Rule(country, chance.randrange(3_000, 10_000)), moment))
    found = play(fraud_rules, records, chunk=chunk).values("alerts")
    assert sorted(found, key=lambda one: one.payment.card) == sorted(expected(records), key=lambda a: a.payment.card)
    assert 20 < len(found) < 140
    assert any(alert.rule is None for alert in found)
