"""Computations that are behind, by the workers' last reports."""

from __future__ import annotations

import pytest

from millwheel.master.backlogs import backlog_problems, interval_backlog
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import IntervalName, SplitInterval, SubmitTopology
from millwheel.model.catalog import Catalog
from millwheel.model.time import Timestamp, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import inspection_pb2 as wire

from .harness import Cluster, Master, topology

NOW = Timestamp(1_700_000_000_000_000)
"""22:13:20 UTC."""


def running() -> Catalog:
    cluster = Cluster()
    cluster.join("w1")
    Master(cluster).call(SubmitTopology(topology(), "r1"))
    return cluster.catalog()


def reported(
    known: Catalog,
    *,
    lag: float = 90.0,
    busy: float = 0.4,
    queued: int = 2_000,
    later: int = 0,
    cpu: float = 1.0,
    book: LoadBook | None = None,
    at: float = 0.0,
    arriving: float | None = None,
) -> LoadBook:
    """Report the intervals of worker w1, one of each computation. That of window-counter has waited."""
    book, response = book or LoadBook(), wire.GetWorkerLoadResponse(cpu=cpu)
    for owned in known.owned_by("w1"):
        load = response.intervals.add(
            journal=owned.interval.journal, sequencer=owned.interval.sequencer + later, busy=busy, records_per_second=9
        )
        if owned.incarnation.startswith("window-counter"):
            load.system_lag_seconds, load.queued_records = lag, queued
            if arriving is not None:
                load.arriving_per_second = arriving
    book.on_load("w1", response, Timestamp(seconds(at)))
    return book


def observed(known: Catalog, growth: float, **report: float) -> LoadBook:
    """Report for a minute, in which the wait of the oldest work grows by ``growth`` seconds in each second."""
    book = LoadBook()
    for at in range(0, 61, 5):
        reported(known, lag=90.0 + at * growth, book=book, at=at, **report)  # type: ignore[arg-type]
    return book


def text_of(known: Catalog, book: LoadBook) -> str:
    (found,) = backlog_problems(known, book, (), NOW)
    return found.text


def write(known: Catalog, *events: catalog.EventRecord) -> None:
    """Write events into the catalog's log."""
    for event in events:
        known.events[max(known.events, default=0) + 1] = event.SerializeToString()


def test_a_computation_with_a_long_queue_is_named() -> None:
    known = running()
    (found,) = backlog_problems(known, reported(known), (), NOW)
    text = found.text
    assert text == (
        "computation zeitgeist/window-counter is behind: its oldest work has waited for 1 min 30 s. 2,000 records "
        "wait, and it takes 9 a second. Its workers (w1) are busy all the time. Start more workers, and balancing "
        "moves intervals there. Without more, it catches up by itself if fewer records come than it takes"
    )


def test_workers_that_have_time_are_named_beside_busy_ones() -> None:
    known = running()
    book = reported(known)
    book.on_load("w2", wire.GetWorkerLoadResponse(), Timestamp(0))
    (found,) = backlog_problems(known, book, (), NOW)
    text = found.text
    assert "(w1) are busy all the time, and w2 not" in text
    assert "`millwheel interval split zeitgeist/window-counter`" in text


def test_a_backlog_of_workers_with_time_has_another_cause() -> None:
    known = running()
    (found,) = backlog_problems(known, reported(known, busy=0.1), (), NOW)
    text = found.text
    assert "Its workers (w1) have time left" in text


@pytest.mark.parametrize(
    "report",
    [{"lag": 59.0}, {"queued": 0}, {"later": 1}],
    ids=["it has waited for less", "it waits for its consumers", "another owner has reported"],
)
def test_what_is_no_backlog_is_not_named(report: dict[str, float]) -> None:
    known = running()
    assert list(backlog_problems(known, reported(known, **report), (), NOW)) == []  # type: ignore[arg-type]


def test_what_another_problem_explains_is_left_out() -> None:
    known = running()
    assert list(backlog_problems(known, reported(known), {("zeitgeist", "window-counter")}, NOW)) == []


def test_the_backlog_of_a_hot_interval_says_where_and_how_long() -> None:
    """Regression: a hot key was named without how much waits for it, how long, and at which worker."""
    known = running()
    (one,) = [owned for owned in known.owned_by("w1") if owned.incarnation.startswith("window-counter")]
    place = (one.incarnation, one.interval.journal)
    text = interval_backlog(known, reported(known), *place)
    assert text == "2,000 records of its interval wait at worker w1, the oldest work for 1 min 30 s"
    assert interval_backlog(known, reported(known, queued=0), *place) == ""


def test_a_backlog_that_grows_says_how_many_come() -> None:
    """Regression: the number that waits swings, and two looks at it gave an all-clear. The wait had grown."""
    known = running()
    assert "2,000 records wait. 12 come in a second, and 9 are taken: it does not catch up. Its workers (w1) are " in (
        text_of(known, observed(known, 0.25))
    )


def test_a_backlog_that_falls_says_when_it_ends() -> None:
    """Regression: workers that caught up had time left, so something was called slow."""
    known = running()
    text = text_of(known, observed(known, -0.25, busy=0.1))
    assert text.endswith(
        "7 come in a second, and 9 are taken: it catches up in about 5 min. It needs no action. More workers make that "
        "shorter"
    )
    assert "slow" not in text
    text = text_of(known, observed(known, -0.022))
    assert "it catches up in about 1 h 7 min. More workers make that shorter" in text, "that is long"


def test_a_surge_that_is_over_is_caught_up_with() -> None:
    known, book = running(), LoadBook()
    for at in range(0, 61, 5):
        reported(known, lag=90.0 + at / 4, book=book, at=at, arriving=1.0, queued=2_480 - 8 * at)
    text = text_of(known, book)
    assert "1 come in a second, and 9 are taken: it catches up in about 4 min 10 s. It needs no action." in text


def test_one_record_that_stays_is_no_rate() -> None:
    known = running()
    assert "2,000 records wait. 9 are taken in a second. Its workers" in text_of(known, observed(known, 1.0))


def test_what_came_at_one_moment_is_worked_off() -> None:
    """Regression: "0 come in a second, and 9 are taken: it does not catch up"."""
    known, book = running(), LoadBook()
    for at in range(0, 61, 5):
        reported(known, lag=90.0 + at, book=book, at=at, arriving=0.0, queued=3_000 - 9 * at)
    assert "0 come in a second, and 9 are taken: it catches up in about 4 min 33 s." in text_of(known, book)


def test_one_interval_of_several_is_not_all() -> None:
    """Regression: of two intervals one caught up, and the sums of both were said not to."""
    cluster, book = Cluster(), LoadBook()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    owned = cluster.catalog().owned_by("w1")
    (whole,) = [one for one in owned if one.incarnation.startswith("window-counter")]
    master.call(SplitInterval(IntervalName(journal=whole.interval.journal), b"m"))
    known = cluster.catalog()
    parts = known.maps[whole.incarnation]
    for at in range(0, 61, 5):
        response = wire.GetWorkerLoadResponse(cpu=1.0)
        for part, growth in zip(parts, (-0.25, 0.25), strict=True):
            response.intervals.add(
                journal=part.journal, sequencer=part.sequencer, busy=0.4, records_per_second=9, queued_records=2_000,
                system_lag_seconds=90 + at * growth,
            )  # fmt: skip
        book.on_load("w1", response, Timestamp(seconds(at)))
    text = text_of(known, book)
    assert "19 come in a second, and 18 are taken. 1 of its 2 intervals that are behind does not catch up. Its" in text


@pytest.mark.parametrize("kind", ["interval.moved", "interval.split"])
def test_right_after_a_change_of_intervals_nothing_is_advised(kind: str) -> None:
    """Regression: a manual split was advised while the balancer moved and split these intervals."""
    known = running()
    book = reported(known)
    book.on_load("w2", wire.GetWorkerLoadResponse(), Timestamp(0))
    event = catalog.EventRecord(kind=kind, topology="zeitgeist", subject="window-counter", at_us=NOW - seconds(50))
    write(known, event)
    text = text_of(known, book)
    assert text.endswith("Its intervals were moved or split within the last minute: look again in a minute.")
    assert "interval split" in text_of(known, reported(known, lag=601.0, book=book)), "it is always balanced"
    reported(known, book=book)
    known.events.clear()
    event.at_us = NOW - seconds(70)
    write(known, event)
    assert "interval split" in text_of(known, book)


def test_workers_that_have_not_come_back_are_the_first_remedy() -> None:
    """Regression: two of three workers were missing, and health did not say so."""
    known = running()
    left = [catalog.EventRecord(kind="worker.left", subject=name, at_us=NOW - seconds(200)) for name in ("w2", "w3")]
    write(known, *left)
    gone = "w2, w3 stopped in order at 22:10:00 UTC and have not come back: start them, unless that is on purpose"
    assert f"are busy all the time. {gone}. Balancing moves" in text_of(known, reported(known))
    assert text_of(known, observed(known, -0.25)).endswith(f"it catches up in about 5 min. {gone}")


def test_busy_workers_that_wait_in_hooks_are_told_apart() -> None:
    """Regression: a worker was busy all the time, and used 7% of a core."""
    known = running()
    assert "Its workers (w1) are busy all the time, mostly waiting in hooks. " in text_of(
        known, reported(known, cpu=0.07)
    )


def test_another_owner_begins_a_new_trend() -> None:
    known = running()
    book = observed(known, -0.25)
    (one,) = [owned for owned in known.owned_by("w1") if owned.incarnation.startswith("window-counter")]
    interval = next(found for found in known.maps[one.incarnation] if found.journal == one.interval.journal)
    before = book.report_of(interval)
    assert before is not None
    assert before.come == pytest.approx(9 / 1.25)
    load = wire.IntervalLoad()
    load.CopyFrom(book.intervals[interval.journal].load)
    load.sequencer += 1
    book.on_load("w2", wire.GetWorkerLoadResponse(intervals=[load]), Timestamp(seconds(62)))
    interval.sequencer += 1
    after = book.report_of(interval)
    assert after is not None
    assert (after.pace, after.come) == (None, None), "it cannot be said yet"
