"""Late sales correct their minute, or are kept aside."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import millwheel as mw
from examples.gallery.late_data import Minute, Sale, late_data
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import at

MINUTE = mw.minutes(1)


def test_the_newest_revision_has_every_sale_that_is_not_too_late() -> None:
    chance = Random(5)
    harness = TopologyHarness(late_data, split_at=["m"])
    totals, too_late = defaultdict[tuple[str, int], int](int), list[Sale]()
    for step in range(100):  # the low watermark rises by half a minute each time
        watermark = at(30 * step)
        harness.advance(watermark)
        if step == 50:
            harness.crash()
        sale = Sale(chance.choice(["north", "east", "south"]), chance.randrange(1, 1_000))
        time = mw.Timestamp(watermark - chance.randrange(mw.minutes(16)))
        harness.send("sales", sale, time)
        start = time - time % MINUTE
        if start + MINUTE + mw.minutes(10) <= watermark:
            too_late.append(sale)
        else:
            totals[sale.shop, start] += sale.cents
    harness.finish()
    newest = dict[tuple[str, int], Minute]()
    for minute in harness.values("minutes"):
        before = newest.get((minute.shop, minute.start))
        assert minute.revision == (before.revision + 1 if before else 0)
        newest[minute.shop, minute.start] = minute
    assert {key: minute.cents for key, minute in newest.items()} == totals
    assert harness.values("too-late") == too_late
    assert len(too_late) > 10
    assert any(minute.revision for minute in newest.values())
