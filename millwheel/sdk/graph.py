"""The graph of a topology: the edges between computations, and its cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Edge", "cycles", "describe_cycle", "is_downstream"]


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """``producer`` produces to ``stream``, and ``consumer`` consumes it."""

    producer: str
    stream: str
    consumer: str


def cycles(edges: Iterable[Edge]) -> list[list[Edge]]:
    """The cycles of a graph, in a deterministic order.

    For each computation in a cycle, the result contains a shortest cycle, unless an earlier cycle contains it already.
    """
    outgoing = _outgoing(edges)
    found: list[list[Edge]] = []
    covered: set[str] = set()
    for start in sorted(outgoing):
        if start in covered:
            continue
        path = _shortest(outgoing, start, start)
        if path is not None:
            found.append(path)
            covered.update(edge.producer for edge in path)
    return found


def is_downstream(edges: Iterable[Edge], upstream: str, downstream: str) -> bool:
    """Whether records of ``upstream`` can reach ``downstream``. A computation is downstream of itself."""
    return upstream == downstream or _shortest(_outgoing(edges), upstream, downstream) is not None


def describe_cycle(cycle: list[Edge]) -> str:
    """The cycle as text: ``a -[windows]-> b -[dips]-> a``."""
    return cycle[0].producer + "".join(f" -[{edge.stream}]-> {edge.consumer}" for edge in cycle)


def _outgoing(edges: Iterable[Edge]) -> dict[str, list[Edge]]:
    outgoing: dict[str, list[Edge]] = {}
    for edge in sorted(set(edges)):
        outgoing.setdefault(edge.producer, []).append(edge)
    return outgoing


def _shortest(outgoing: dict[str, list[Edge]], start: str, goal: str) -> list[Edge] | None:
    """A shortest path from ``start`` to ``goal`` with at least one edge, or None."""
    came_by: dict[str, Edge] = {}
    queue = deque([start])
    while queue:
        for edge in outgoing.get(queue.popleft(), ()):
            if edge.consumer == goal:
                return _trace(came_by, start, edge)
            if edge.consumer not in came_by:
                came_by[edge.consumer] = edge
                queue.append(edge.consumer)
    return None


def _trace(came_by: dict[str, Edge], start: str, last: Edge) -> list[Edge]:
    path = [last]
    while path[-1].producer != start:
        path.append(came_by[path[-1].producer])
    return path[::-1]
