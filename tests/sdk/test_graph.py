"""Cycles of the graph, compared with a naive model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.sdk.graph import Edge, cycles, describe_cycle, is_downstream

_NODES = "abcdef"
_EDGES = st.lists(st.builds(Edge, st.sampled_from(_NODES), st.sampled_from("st"), st.sampled_from(_NODES)), max_size=12)


def _reachable(edges: list[Edge]) -> set[tuple[str, str]]:
    """The pairs of nodes that a path connects, by Warshall's algorithm."""
    closure = {(edge.producer, edge.consumer) for edge in edges}
    for middle in _NODES:
        closure |= {(a, d) for a, b in closure for c, d in closure if b == middle == c}
    return closure


@given(_EDGES)
def test_a_cycle_is_found_for_each_set_of_linked_computations(edges: list[Edge]) -> None:
    closure = _reachable(edges)
    on_cycles = {node for node in _NODES if (node, node) in closure}
    found = cycles(edges)
    for cycle in found:
        assert set(cycle) <= set(edges)
        for edge, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            assert edge.consumer == following.producer
        assert len({edge.producer for edge in cycle}) == len(cycle)
    covered = {edge.producer for cycle in found for edge in cycle}
    assert covered == on_cycles
    assert cycles(edges[::-1]) == found


@given(_EDGES, st.sampled_from(_NODES), st.sampled_from(_NODES))
def test_downstream_is_reachable(edges: list[Edge], one: str, other: str) -> None:
    assert is_downstream(edges, one, other) == (one == other or (one, other) in _reachable(edges))


def test_a_cycle_is_reported_with_the_streams_that_make_it() -> None:
    cycle = [Edge("a", "windows", "b"), Edge("b", "dips", "a")]
    assert describe_cycle(cycle) == "a -[windows]-> b -[dips]-> a"
