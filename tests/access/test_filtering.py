"""Elements of a response that are of another topology are left out."""

from __future__ import annotations

from millwheel.rpc.access.callers import Caller
from millwheel.rpc.access.filtering import filtered
from millwheel.rpc.access.page_tokens import PageTokens
from millwheel.rpc.access.policy import AccessGrant, AccessPolicy
from millwheel.rpc.access.requirements import access_of
from millwheel.rpc.principal import Principal
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.server.access import FixedPolicy


def caller(method: str, *topologies: str) -> Caller:
    access = access_of(f"/millwheel.v1.{method}")
    assert access is not None
    policy = AccessPolicy((AccessGrant(("certificate:sue",), frozenset({"read"}), topologies),))
    return Caller(Principal("certificate:sue"), access, FixedPolicy(policy))


def test_an_explanation_shows_failures_of_ones_own_topologies() -> None:
    """The chain may lead through a topology whose stream is read. Its failures have keys and messages of its code."""
    both = ["shop", "payroll"]
    for allowed, shown in ((["shop"], ["shop"]), (both, both), (["*"], both)):
        response = cluster.ExplainHoldResponse()
        for name in ("shop", "payroll"):
            response.failing.add(topology=name, text="KeyError: 'ann'")
        found = filtered(caller("ClusterService/ExplainHold", *allowed), response, PageTokens())
        assert [one.topology for one in found.failing] == shown


def test_the_health_is_for_readers_of_each_topology() -> None:
    """Its problems name topologies, keys and messages."""
    for granted, shown in ((["shop", "pay*"], False), (["*"], True)):
        asking = caller("ClusterService/GetClusterHealth", *granted)
        (rule,) = asking.access.rules
        assert not rule.anywhere
        assert asking.holds(rule, None) == shown, "a request without a topology needs the role for the whole cluster"
        assert not shown or all(asking.holds(rule, topology) for topology in ("shop", "payroll", "a later one"))
        overview = cluster.GetOverviewResponse(health=cluster.GetClusterHealthResponse(problems=["payroll fails"]))
        found = filtered(caller("ClusterService/GetOverview", *granted), overview, PageTokens())
        assert found.HasField("health") == shown
