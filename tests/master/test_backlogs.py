"""Computations that are behind, by the workers' last reports."""

from __future__ import annotations

import pytest

from millwheel.master.backlogs import backlog_problems, interval_backlog
from millwheel.master.load_book import LoadBook
from millwheel.master.messages import SubmitTopology
from millwheel.model.catalog import Catalog
from millwheel.model.time import Timestamp
from millwheel.rpc.v1 import inspection_pb2 as wire

from .harness import Cluster, Master, topology


def running() -> Catalog:
    cluster = Cluster()
    cluster.join("w1")
    Master(cluster).call(SubmitTopology(topology(), "r1"))
    return cluster.catalog()


def reported(known: Catalog, *, lag: float = 90.0, busy: float = 0.4, queued: int = 2_000, later: int = 0) -> LoadBook:
    """Report the intervals of worker w1, one of each computation. That of window-counter has waited."""
    book, response = LoadBook(), wire.GetWorkerLoadResponse()
    for owned in known.owned_by("w1"):
        load = response.intervals.add(
            journal=owned.interval.journal, sequencer=owned.interval.sequencer + later, busy=busy, records_per_second=9
        )
        if owned.incarnation.startswith("window-counter"):
            load.system_lag_seconds, load.queued_records = lag, queued
    book.on_load("w1", response, Timestamp(0))
    return book


def test_a_computation_with_a_long_queue_is_named() -> None:
    known = running()
    (found,) = backlog_problems(known, reported(known), ())
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
    (found,) = backlog_problems(known, book, ())
    text = found.text
    assert "(w1) are busy all the time, and w2 not" in text
    assert "`millwheel interval split zeitgeist/window-counter`" in text


def test_a_backlog_of_workers_with_time_has_another_cause() -> None:
    known = running()
    (found,) = backlog_problems(known, reported(known, busy=0.1), ())
    text = found.text
    assert "Its workers (w1) have time left" in text


@pytest.mark.parametrize(
    "report",
    [{"lag": 59.0}, {"queued": 0}, {"later": 1}],
    ids=["it has waited for less", "it waits for its consumers", "another owner has reported"],
)
def test_what_is_no_backlog_is_not_named(report: dict[str, float]) -> None:
    known = running()
    assert list(backlog_problems(known, reported(known, **report), ())) == []  # type: ignore[arg-type]


def test_what_another_problem_explains_is_left_out() -> None:
    known = running()
    assert list(backlog_problems(known, reported(known), {("zeitgeist", "window-counter")})) == []


def test_the_backlog_of_a_hot_interval_says_where_and_how_long() -> None:
    """Regression: a hot key was named without how much waits for it, how long, and at which worker."""
    known = running()
    (one,) = [owned for owned in known.owned_by("w1") if owned.incarnation.startswith("window-counter")]
    place = (one.incarnation, one.interval.journal)
    text = interval_backlog(known, reported(known), *place)
    assert text == "2,000 records of its interval wait at worker w1, the oldest work for 1 min 30 s"
    assert interval_backlog(known, reported(known, queued=0), *place) == ""
