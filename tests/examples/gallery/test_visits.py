"""Visits are found in any order, and late pages are not lost."""

from __future__ import annotations

from random import Random

import millwheel as mw
from examples.gallery.visits import PageView, Visit, visits
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import at, play

GAP = mw.minutes(30)


def expected(views: list[tuple[PageView, mw.Timestamp]]) -> list[Visit]:
    found = list[Visit]()
    open_visits = dict[str, Visit]()
    for view, time in sorted(views, key=lambda one: one[1]):
        visit = open_visits.get(view.visitor)
        if visit is not None and time < visit.end:
            visit = Visit(view.visitor, visit.start, mw.Timestamp(time + GAP), visit.pages + 1, visit.first)
        else:
            found += [visit] if visit else []
            visit = Visit(view.visitor, time, mw.Timestamp(time + GAP), 1, view)
        open_visits[view.visitor] = visit
    return [*found, *open_visits.values()]


def by_start(visit: Visit) -> tuple[str, int]:
    return visit.visitor, visit.start


def test_visits_end_after_half_an_hour() -> None:
    chance = Random(2)
    moments = chance.sample(range(60_000), 120)
    views = [(PageView(chance.choice(["ann", "eve", "tom"]), f"/{number}"), at(s)) for number, s in enumerate(moments)]
    harness = play(visits, [("views", *one) for one in views])
    found = harness.values("visits")
    assert len(found) > 10
    assert sorted(found, key=by_start) == sorted(expected(views), key=by_start)
    assert harness.values("missed") == []


def test_a_page_of_a_visit_that_has_ended_is_missed() -> None:
    harness = TopologyHarness(visits)
    harness.advance(at(0))
    harness.send("views", PageView("ann", "/late"), mw.Timestamp(at(0) - GAP))
    harness.send("views", PageView("ann", "/not-so-late"), mw.Timestamp(at(1) - GAP))
    harness.finish()
    assert [one.page for one in harness.values("missed")] == ["/late"]
    assert [one.first.page for one in harness.values("visits")] == ["/not-so-late"]
