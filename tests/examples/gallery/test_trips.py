"""Trips are matched in the order of their events' timestamps."""

from __future__ import annotations

from random import Random

import pytest

import millwheel as mw
from examples.gallery.trips import LIMIT, Event, Trip, trips
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import Sent, at, play

HOUR = 3_600


def expected(events: list[tuple[Event, mw.Timestamp]]) -> list[Trip]:
    found, started = list[Trip](), dict[str, mw.Timestamp]()
    for event, time in sorted(events, key=lambda one: one[1]):
        start = started.pop(event.taxi, None)
        if start is not None:
            in_time = not event.starts and time - start < LIMIT
            found.append(Trip(event.taxi, start, time if in_time else None))
        if event.starts:
            started[event.taxi] = time
    return found + [Trip(taxi, start, None) for taxi, start in started.items()]


def by_start(trip: Trip) -> tuple[str, int]:
    return trip.taxi, trip.start


@pytest.mark.parametrize("chunk", [1, 20, 500])
def test_trips_are_matched(chunk: int) -> None:
    chance = Random(7)
    moments = chance.sample(range(200 * HOUR), 150)
    events = [(Event(chance.choice(["7a", "k2", "z9"]), chance.random() < 0.5), at(moment)) for moment in moments]
    found = play(trips, [("events", *one) for one in events], chunk=chunk).values("trips")
    assert sorted(found, key=by_start) == sorted(expected(events), key=by_start)
    assert 20 < sum(trip.end is not None for trip in found) < len(found) - 20


@pytest.mark.parametrize(("seconds", "in_time"), [(6 * HOUR - 1, True), (6 * HOUR, False)])
def test_a_trip_takes_less_than_six_hours(seconds: int, in_time: bool) -> None:
    events: list[Sent] = [("events", Event("7a", True), at(0)), ("events", Event("7a", False), at(seconds))]
    assert play(trips, events).values("trips") == [Trip("7a", at(0), at(seconds) if in_time else None)]


def test_a_trip_without_an_end_is_known_after_six_hours() -> None:
    harness = TopologyHarness(trips)
    harness.send("events", Event("7a", True), at(0))
    harness.advance(at(6 * HOUR - 1))
    assert harness.values("trips") == []
    harness.advance(at(6 * HOUR))
    assert harness.values("trips") == [Trip("7a", at(0), None)]
    assert harness.state("matcher", "7a") is None
