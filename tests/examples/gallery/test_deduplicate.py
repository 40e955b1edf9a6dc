"""Each click passes once."""

from __future__ import annotations

from random import Random

from examples.gallery.deduplicate import Click, deduplicate
from millwheel.testing import TopologyHarness
from tests.examples.gallery.playing import Sent, at, play

HOUR = 3_600


def test_a_click_passes_once() -> None:
    chance = Random(6)
    clicks = [Click(f"{chance.getrandbits(64):016x}", chance.choice(["/tea", "/jam"])) for _ in range(60)]
    records: list[Sent] = []
    for click in clicks:
        first = chance.uniform(0, 48 * HOUR)
        copies = [first, *(first + chance.uniform(0, 11 * HOUR) for _ in range(chance.randrange(4)))]
        records += [("clicks", click, at(time)) for time in copies]
    assert len(records) > 2 * len(clicks)
    harness = play(deduplicate, records)
    found = harness.values("unique")
    assert len(found) == len(clicks)
    assert set(found) == set(clicks)
    assert all(harness.state("unique", click.id) is None for click in clicks)  # all are forgotten


def test_an_id_is_remembered_for_a_day() -> None:
    harness = TopologyHarness(deduplicate)
    for hours in (0, 23, 25):
        harness.advance(at(hours * HOUR))
        harness.send("clicks", Click("a", "/tea"), at(hours * HOUR))
    assert len(harness.values("unique")) == 2
