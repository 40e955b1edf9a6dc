"""Orders are done when all steps have come, and stuck after a time-out."""

from __future__ import annotations

from random import Random

import millwheel as mw
from examples.gallery.order_steps import WAIT, Order, Step, Stuck, order_steps
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import Sent, at, play


def test_an_order_is_done_when_its_steps_have_come_in_any_order() -> None:
    chance = Random(9)
    records, steps = list[Sent](), dict[str, set[Step]]()
    for number in range(60):
        order = f"{chance.choice('aeiou')}{number}"
        steps[order] = {step for step in WAIT if chance.random() < 0.8}
        records += [("orders", Order(order, step), at(chance.uniform(0, 600))) for step in steps[order]]
    harness = play(order_steps, records)
    done = [order for order, seen in steps.items() if len(seen) == len(WAIT)]
    assert sorted(harness.values("done")) == sorted(done)
    assert all(harness.state("follow", order) is None for order in done)
    harness.crash()
    harness.advance_clock(mw.hours(48))
    missing = {order: [step for step in WAIT if step not in seen] for order, seen in steps.items() if seen}
    stuck = [Stuck(order, absent[0]) for order, absent in missing.items() if absent]
    assert sorted(harness.values("stuck"), key=lambda one: one.order) == sorted(stuck, key=lambda one: one.order)


def test_each_step_begins_another_time_out() -> None:
    harness = TopologyHarness(order_steps)
    harness.send("orders", Order("a", "created"), at(0))
    harness.advance_clock(mw.minutes(29))
    harness.send("orders", Order("a", "paid"), at(0))
    harness.advance_clock(mw.hours(47))
    assert harness.values("stuck") == []
    harness.advance_clock(mw.hours(1))
    assert harness.values("stuck") == [Stuck("a", "shipped")]
    harness.send("orders", Order("a", "shipped"), at(0))
    assert harness.values("done") == ["a"]
