"""Injector processes and batch cursors (section 5.2)."""

from __future__ import annotations

import pytest

from millwheel.master.messages import (
    CancelTopology,
    CommitBatch,
    FinishInjector,
    OpenInjector,
    RetireInjector,
    RetireQuery,
    SubmitTopology,
)
from millwheel.model.time import hours, seconds
from millwheel.rpc.failures import FailureCode, RequestError

from .harness import Cluster, Master, computation, source, topology


def master_with(*expected: str) -> tuple[Cluster, Master]:
    cluster = Cluster()
    master = Master(cluster)
    streams = [source("zeitgeist/queries", expected_injectors=list(expected))]
    spec = topology(streams=streams, computations=[computation("c", {"zeitgeist/queries": "text"}, ["out"])])
    master.call(SubmitTopology(spec, "r1"))
    return cluster, master


def test_each_opening_draws_a_larger_sequencer() -> None:
    _, master = master_with()
    drawn = [master.call(OpenInjector("zeitgeist/queries", process)).sequencer for process in ("p", "q", "p")]
    assert drawn == sorted(set(drawn))


def test_what_may_not_be_injected_is_refused_with_what_may() -> None:
    _, master = master_with("p1", "p2")
    cases = [
        (OpenInjector("querys", "p1"), FailureCode.NOT_FOUND, "did you mean 'queries'"),
        (OpenInjector("zeitgeist/out", "p1"), FailureCode.FAILED_PRECONDITION, "takes no injections"),
        (OpenInjector("zeitgeist/queries", "p3"), FailureCode.INVALID_ARGUMENT, "expected: 'p1', 'p2'"),
        (OpenInjector("zeitgeist/queries", ""), FailureCode.INVALID_ARGUMENT, "does not expect"),
    ]
    for request, code, part in cases:
        with pytest.raises(RequestError, match=part) as caught:
            master.call(request)
        assert caught.value.code is code


def test_finished_is_final_until_the_stream_is_removed() -> None:
    _, master = master_with()
    old = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    new = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    assert not master.call(FinishInjector("zeitgeist/queries", "p", old)).finished
    assert master.call(FinishInjector("zeitgeist/queries", "p", new)).finished
    with pytest.raises(RequestError, match="has finished, and that is final"):
        master.call(OpenInjector("zeitgeist/queries", "p"))
    master.call(CancelTopology("zeitgeist"))
    spec = topology(streams=[source("queries")], computations=[computation("c", {"queries": "text"}, [])])
    master.call(SubmitTopology(spec, "r2"))
    assert master.call(OpenInjector("zeitgeist/queries", "p")).sequencer > new


@pytest.mark.guarantee("G13")
def test_a_name_that_no_authority_would_take_leaves_no_record() -> None:
    cluster, master = master_with()
    for request in (OpenInjector("zeitgeist/queries", "ü" * 513), CommitBatch("q" * 1025, 0)):
        with pytest.raises(RequestError, match="1,024 are the most") as caught:
            master.call(request)
        assert caught.value.code is FailureCode.INVALID_ARGUMENT
    assert not cluster.catalog().injectors
    assert not cluster.catalog().batches
    assert master.call(OpenInjector("zeitgeist/queries", "ü" * 512)).sequencer > 0


def test_batch_cursors_never_go_back_and_outlive_topologies() -> None:
    cluster, master = master_with()
    for batch, expected in ((0, 0), (3, 3), (2, 3), (3, 3), (7, 7)):
        assert master.call(CommitBatch("query-1", batch)).committed_batch == expected
    master.call(CancelTopology("zeitgeist"))
    assert cluster.catalog().batches == {"query-1": 7}
    for wrong in (CommitBatch("", 1), CommitBatch("q", -1)):
        with pytest.raises(RequestError):
            master.call(wrong)


@pytest.mark.guarantee("G13")
def test_a_retired_process_is_reported_and_its_name_stays_taken() -> None:
    cluster, master = master_with()
    with pytest.raises(RequestError, match="has no injector process 'p'"):
        master.call(RetireInjector("zeitgeist/queries", "p", 0))
    sequencer = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
    master.call(OpenInjector("zeitgeist/queries", "q"))
    master.call(FinishInjector("zeitgeist/queries", "p", sequencer))
    for _ in range(2):
        assert master.call(RetireInjector("zeitgeist/queries", "p", sequencer)).retired
    assert cluster.catalog().retired_injectors() == {"zeitgeist/queries": frozenset({"injector/zeitgeist/queries/p"})}
    with pytest.raises(RequestError, match="has finished, and that is final"):
        master.call(OpenInjector("zeitgeist/queries", "p"))
    master.call(CancelTopology("zeitgeist"))
    assert cluster.catalog().retired_injectors() == {}


@pytest.mark.guarantee("G7", section="5.2")
def test_a_process_that_started_during_the_check_is_not_retired() -> None:
    """Regression: the authority did not know the process, or only its former life.

    So the master would have waited for it for ever.
    """
    cluster, master = master_with()
    seen = 0
    for _ in range(2):
        sequencer = master.call(OpenInjector("zeitgeist/queries", "p")).sequencer
        with pytest.raises(RequestError, match="has not finished") as caught:
            master.call(RetireInjector("zeitgeist/queries", "p", seen))
        assert caught.value.reason == "INJECTOR_NOT_FINISHED"
        seen = sequencer
    assert cluster.catalog().retired_injectors() == {}
    assert master.call(RetireInjector("zeitgeist/queries", "p", seen)).retired, "it was none of those expected"


@pytest.mark.guarantee("G13")
def test_a_retired_query_takes_no_batch_and_ends_in_a_day() -> None:
    cluster, master = master_with()
    master.call(CommitBatch("query-1", 3))
    master.call(CommitBatch("query-2", 0))
    with pytest.raises(RequestError, match="did you mean 'query-"):
        master.call(RetireQuery("query-l"))
    for _ in range(2):
        assert master.call(RetireQuery("query-1"), now=hours(1)).committed_batch == 3
    assert cluster.catalog().retired_queries.keys() == {"query-1"}
    with pytest.raises(RequestError, match="was retired by an operator") as caught:
        master.call(CommitBatch("query-1", 4))
    assert caught.value.code is FailureCode.FAILED_PRECONDITION
    for minutes in range(0, 60, 10):
        master.tick(hours(24) + minutes * seconds(60))
        assert cluster.catalog().batches == {"query-1": 3, "query-2": 0}
    master.tick(hours(26))
    assert cluster.catalog().batches == {"query-2": 0}, "no worker waits for the news any more"
