"""Each payment meets the rules of its time."""

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
            rules[value.id] = value
        else:
            hold = [rule for rule in rules.values() if not rule.off and rule.country in ("", value.country)]
            broken = sorted(rule.id for rule in hold if value.cents > rule.most_cents)
            found += [Alert(value, broken)] if broken else []
    return found


@pytest.mark.parametrize("chunk", [20, 1_000])
def test_a_payment_meets_the_rules_of_its_time(chunk: int) -> None:
    chance = Random(12)
    moments: list[mw.Timestamp] = [at(second) for second in chance.sample(range(100_000), 200)]
    records = list[Sent]()
    for number, moment in enumerate(moments):
        country = chance.choice(["br", "de", "no"])
        if number % 5:
            records.append(("payments", Payment(f"card-{number}", country, chance.randrange(10_000)), moment))
        else:
            most, off = chance.randrange(3_000, 10_000), chance.random() < 0.2
            where = chance.choice(["", country])
            records.append(("rules", Rule(f"{where or 'all'}-{number % 2}", most, where, off), moment))
    found = play(fraud_rules, records, chunk=chunk).values("alerts")
    assert sorted(found, key=lambda one: one.payment.card) == sorted(expected(records), key=lambda a: a.payment.card)
    assert 20 < len(found) < 140
    assert any(len(alert.broken) > 1 for alert in found)
    assert any("all-0" not in alert.broken and "all-1" not in alert.broken for alert in found)
