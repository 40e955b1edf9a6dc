"""A stream's log begins with its first reader, and ends when an operator deletes it (section 4.3)."""

from __future__ import annotations

import pytest

from millwheel.master.messages import DeleteLog, EnsureLog, SubmitTopology
from millwheel.model.time import seconds
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import topology_pb2 as specs

from .harness import Cluster, Master, computation, topology


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
    assert master.call(DeleteLog("zeitgeist/windows")).deleted
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
    before = set(cluster.catalog().logs)
    assert before
    for stream in before:
        with pytest.raises(RequestError, match="its records go to its log alone"):
            master.call(DeleteLog(stream))
    assert set(cluster.catalog().logs) == before
    with pytest.raises(RequestError, match="did you mean"):
        master.call(DeleteLog("zeitgeist/window"))


def test_the_letters_that_people_handle_are_not_deleted() -> None:
    """A computation reads the dead letters, too. The log would have begun again at once, without what people do."""
    cluster = Cluster()
    cluster.join("w1")
    master = Master(cluster)
    master.call(SubmitTopology(topology(), "r1"))
    letters = specs.StreamSpec(name="zeitgeist/dead-letters", external=True)
    alerts = computation("alerts", {"zeitgeist/dead-letters": "computation"}, [])
    master.call(SubmitTopology(topology("ops", [letters], [alerts]), "r2"))
    before = cluster.catalog().logs["zeitgeist/dead-letters"].incarnation
    assert [one.log for one in cluster.catalog().consumers("zeitgeist/dead-letters")] == [False, True]
    with pytest.raises(RequestError, match="millwheel dead-letter discard zeitgeist"):
        master.call(DeleteLog("zeitgeist/dead-letters"))
    master.tick(int(seconds(3)))
    assert cluster.catalog().logs["zeitgeist/dead-letters"].incarnation == before
