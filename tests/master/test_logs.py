"""A stream's log begins with its first reader, and ends when an operator deletes it (section 4.3)."""

from __future__ import annotations

import pytest

from millwheel.master.messages import DeleteLog, EnsureLog, SubmitTopology
from millwheel.model.time import seconds
from millwheel.rpc.failures import RequestError

from .harness import Cluster, Master, computation, external, topology


def test_any_stream_that_is_subscribed_to_gets_a_log() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    answer = master.call(EnsureLog("zeitgeist/windows"))
    assert answer.owner.worker_id == "w1"
    assert cluster.has_journal(answer.journal)
    assert answer.stream.record_type == "app.Count"
    again = master.call(EnsureLog("zeitgeist/windows"))
    assert (answer.created, again.created, again.journal) == (True, False, answer.journal)
    assert [one.log for one in cluster.catalog().consumers("zeitgeist/windows")] == [False, True]
    with pytest.raises(RequestError, match="did you mean 'zeitgeist/windows'"):
        master.call(EnsureLog("zeitgeist/window"))


@pytest.mark.guarantee("G11", section="4.3")
def test_a_log_that_no_reader_needs_is_deleted_and_may_return() -> None:
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    first = master.call(EnsureLog("zeitgeist/windows"))
    with pytest.raises(RequestError, match="has begun meanwhile"):
        master.call(DeleteLog("zeitgeist/windows", "zeitgeist/windows.log.1"))
    with pytest.raises(RequestError, match="has begun meanwhile"):
        master.call(DeleteLog("zeitgeist/windows", ""))  # there was no log when its cursors were asked for
    assert master.call(DeleteLog("zeitgeist/windows", first.incarnation)).deleted
    assert [one.log for one in cluster.catalog().consumers("zeitgeist/windows")] == [False]
    assert not master.call(DeleteLog("zeitgeist/windows")).deleted, "a repeated call changes nothing"
    second = master.call(EnsureLog("zeitgeist/windows"))
    assert (second.created, second.incarnation != first.incarnation) == (True, True)
    master.tick(int(seconds(3)))
    assert first.incarnation not in cluster.catalog().maps
    assert not cluster.has_journal(first.journal)
    assert cluster.has_journal(second.journal)


def test_a_log_that_is_a_streams_only_reader_is_not_deleted() -> None:
    cluster = Cluster()
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    letters = cluster.catalog().stream("zeitgeist/dead-letters")
    assert letters is not None
    read = external(letters.name, letters.record_type)
    master.call(SubmitTopology(topology("reader", [read], [computation("r", {letters.name: "stream"}, [])]), "r1"))
    assert len(cluster.catalog().consumers(letters.name)) == 2
    before = set(cluster.catalog().logs)
    assert before > {letters.name}
    for stream in before:
        why = "dead letters are kept" if "dead-letters" in stream else "its records go to its log alone"
        with pytest.raises(RequestError, match=why):
            master.call(DeleteLog(stream))
    assert set(cluster.catalog().logs) == before
    with pytest.raises(RequestError, match="did you mean"):
        master.call(DeleteLog("zeitgeist/window"))
