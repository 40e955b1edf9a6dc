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
