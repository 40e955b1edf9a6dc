"""Cycles of computations, within a topology and across topologies. A low watermark cannot advance around a cycle."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.model.catalog import dead_letter_writers, outputs_of
from millwheel.model.stream_names import dead_letter_stream
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["find_cycle"]

Node = tuple[str, str]


def find_cycle(topologies: Sequence[specs.TopologySpec]) -> list[str]:
    """Return one cycle through a computation of the first topology, as names with the streams between; empty if none.

    Feedback edges take no part in watermarks, so they are ignored here.
    """
    edges = _edges(topologies)
    for computation in topologies[0].computations:
        path = _path_back((topologies[0].name, computation.name), edges)
        if path:
            return path
    return []


def _edges(topologies: Sequence[specs.TopologySpec]) -> dict[Node, list[tuple[str, Node]]]:
    """Return the (stream, consumer) pairs that each computation feeds."""
    readers: dict[str, list[Node]] = {}
    for spec in topologies:
        for computation in spec.computations:
            for edge in computation.inputs:
                if not edge.feedback:
                    readers.setdefault(edge.stream, []).append((spec.name, computation.name))
    edges: dict[Node, list[tuple[str, Node]]] = {}
    for spec in topologies:
        writers = dead_letter_writers(spec)
        for computation in spec.computations:
            letters = [dead_letter_stream(spec.name)] if computation.name in writers else []
            streams = [*outputs_of(computation), *letters]
            fed = [(stream, reader) for stream in streams for reader in readers.get(stream, ())]
            edges[spec.name, computation.name] = fed
    return edges


def _path_back(start: Node, edges: dict[Node, list[tuple[str, Node]]]) -> list[str]:
    """Search breadth first, so that the reported cycle is a shortest one."""
    seen = {start}
    paths: list[tuple[Node, list[str]]] = [(start, [start[1]])]
    for node, path in paths:
        for stream, reader in edges.get(node, ()):
            step = [*path, f"({stream})", reader[1] if reader[0] == start[0] else f"{reader[0]}/{reader[1]}"]
            if reader == start:
                return step
            if reader not in seen:
                seen.add(reader)
                paths.append((reader, step))
    return []
