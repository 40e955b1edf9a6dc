"""Workers that were stopped in order and have not come back."""

from __future__ import annotations

from millwheel.master.event_watch import JOINED, LEFT, LOST
from millwheel.master.missing_workers import missing_text, missing_workers
from millwheel.model.time import Timestamp, minutes, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog

BEGIN = 1_700_000_000_000_000
"""22:13:20 UTC."""


def happened(*events: tuple[str, str, int]) -> list[catalog.EventRecord]:
    """Events of a kind, about a worker, so many seconds after the begin."""
    return [
        catalog.EventRecord(kind=kind, subject=worker, at_us=BEGIN + seconds(at), before=f"{worker}:1")
        for kind, worker, at in events
    ]


def missing(events: list[catalog.EventRecord], *present: str, after: int = 600) -> list[str]:
    return [one.worker_id for one in missing_workers(events, present, Timestamp(BEGIN + seconds(after)))]


def test_workers_that_are_not_back_are_missing() -> None:
    events = happened((LEFT, "w1", 0), (LEFT, "w2", 0), (LEFT, "w3", 0), (JOINED, "w1", 180))
    assert missing(events, "w1") == ["w2", "w3"]
    assert missing(events, "w1", "w2") == ["w3"], "its event is not written yet"
    assert missing(events, "w1", after=3_601) == [], "the cluster has become smaller"


def test_another_name_stands_for_the_first_that_left() -> None:
    events = happened((LEFT, "w1-a", 0), (LEFT, "w2-a", 1), (JOINED, "w1-b", 5))
    assert missing(events, "w1-b") == ["w2-a"]


def test_a_successor_may_come_first() -> None:
    """Regression: of workers that were replaced one by one, the last was missing for an hour."""
    events = happened((JOINED, "n1", 0), (LEFT, "o1", 60), (JOINED, "n2", 120), (LEFT, "o2", 180))
    assert missing(events, "n1", "n2") == []
    events = happened((JOINED, "n1", 0), (JOINED, "n2", 1), (LEFT, "o1", 60), (LEFT, "o2", 60), (LEFT, "o3", 60))
    assert missing(events, "n1", "n2") == ["o3"]


def test_workers_that_began_together_replace_none() -> None:
    began = [(JOINED, "w1", 0), (JOINED, "w2", 20), (JOINED, "w3", 40)]
    assert missing(happened(*began, (LEFT, "w1", 300), (LEFT, "w2", 300)), "w3") == ["w1", "w2"]
    assert missing(happened(*began, (LEFT, "w3", 300), (JOINED, "w3", 310), (LEFT, "w3", 320)), "w1", "w2") == ["w3"]


def test_one_that_joined_long_before_replaces_none() -> None:
    assert missing(happened((JOINED, "w2", 0), (LEFT, "w1", 601)), "w2", after=700) == ["w1"]
    assert missing(happened((JOINED, "w2", 0), (LOST, "w2", 30), (LEFT, "w1", 60))) == ["w1"]


def test_one_that_was_lost_stands_for_no_other() -> None:
    events = happened((LOST, "w3", 0), (LEFT, "w1", 1), (JOINED, "w3", 2))
    assert missing(events, "w3") == ["w1"]
    assert missing(happened((LOST, "w3", 0))) == [], "an alert says so of this one"


def test_the_text_says_who_and_when() -> None:
    events = happened((LEFT, "w2", 0), (LEFT, "w3", 0))
    now = Timestamp(BEGIN + minutes(5))
    assert missing_text(missing_workers(events, (), now)) == (
        "w2, w3 stopped in order at 22:13:20 UTC and have not come back"
    )
    (one,) = missing_workers(events[:1], (), now)
    assert missing_text([one]) == "w2 stopped in order at 22:13:20 UTC and has not come back"
    assert one.address == "w2:1"
    later = happened((LEFT, "w2", 0), (LEFT, "w3", 60))
    assert "from 22:13:20 UTC to 22:14:20 UTC" in missing_text(missing_workers(later, (), now))
