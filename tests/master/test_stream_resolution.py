"""Names of streams that callers give: full, or short while they are unique in the cluster (section 4.2)."""

from __future__ import annotations

import pytest

from millwheel.master.messages import CancelTopology, OpenInjector, SubmitTopology
from millwheel.master.stream_resolution import refuse_unknown_stream, resolve_stream
from millwheel.rpc.failures import FailureCode, RequestError

from .harness import Cluster, Master, topology


def twins() -> tuple[Cluster, Master]:
    cluster = Cluster()
    master = Master(cluster)
    for name in ("zeitgeist", "other"):
        master.call(SubmitTopology(topology(name), name))
    return cluster, master


def test_a_short_name_is_the_only_stream_of_that_name() -> None:
    cluster, master = twins()
    master.call(CancelTopology("other"))
    known = cluster.catalog()
    assert resolve_stream("queries", known) == "zeitgeist/queries"
    assert resolve_stream("dead-letters", known) == "zeitgeist/dead-letters"
    assert resolve_stream("zeitgeist/queries", known) == "zeitgeist/queries"


def test_an_ambiguous_short_name_is_refused_with_candidates() -> None:
    known = twins()[0].catalog()
    with pytest.raises(RequestError) as caught:
        resolve_stream("queries", known)
    assert (caught.value.code, caught.value.reason) == (FailureCode.INVALID_ARGUMENT, "STREAM_AMBIGUOUS")
    assert "2 topologies have a stream 'queries': other/queries, zeitgeist/queries" in str(caught.value)
    assert resolve_stream("other/queries", known) == "other/queries"


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    known = twins()[0].catalog()
    with pytest.raises(RequestError, match=r"there is no stream 'querys' \(did you mean 'queries'\?\)") as caught:
        resolve_stream("querys", known)
    assert caught.value.code is FailureCode.NOT_FOUND


def test_a_full_name_is_compared_with_its_own_topology_alone() -> None:
    """The caller may have no role for another topology, and then its streams have no names for it."""
    known = twins()[0].catalog()
    with pytest.raises(RequestError, match=r"'other/querys' \(did you mean 'other/queries'\?\)"):
        refuse_unknown_stream("other/querys", known)
    with pytest.raises(RequestError) as caught:
        refuse_unknown_stream("mother/queries", known)
    assert caught.value.message == "there is no stream 'mother/queries'"


def test_the_master_knows_streams_by_their_full_names_alone() -> None:
    _, master = twins()
    with pytest.raises(RequestError, match=r"no stream 'queries' \(in full: other/queries, zeitgeist/queries\)"):
        master.call(OpenInjector("queries", "p"))
    one, other = (master.call(OpenInjector(f"{name}/queries", "p")) for name in ("zeitgeist", "other"))
    assert (one.stream, other.stream) == ("zeitgeist/queries", "other/queries")
