"""The chart of a minute has the pages of all keys."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import millwheel as mw
from examples.gallery.top_pages import Chart, top_pages
from tests.examples.gallery.playing import at, play


def test_a_minute_has_three_top_pages() -> None:
    chance = Random(4)
    views = [(chance.choice(["/", "/cart", "/help", "/login", "/tea"]), at(chance.uniform(0, 600))) for _ in range(300)]
    minutes = defaultdict[int, Counter[str]](Counter)
    for page, time in views:
        minutes[time - time % mw.minutes(1) + mw.minutes(1)][page] += 1
    expected = [
        Chart(mw.Timestamp(end), sorted(counted, key=lambda page: (-counted[page], page))[:3])
        for end, counted in sorted(minutes.items())
    ]
    harness = play(top_pages, [("pages", *one) for one in views])
    assert sorted(harness.values("charts"), key=lambda one: one.end) == expected
    assert len(expected) == 10
