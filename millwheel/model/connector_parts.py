"""Which computations of a topology are parts of its sources and sinks. The library adds two for each. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["MAKES_BATCHES", "PART_NAMES", "connector_parts", "inner_streams"]

MAKES_BATCHES: Final = "millwheel.connectors.writing:MakeBatches"
"""The implementation of each computation that makes the batches of a sink."""

PART_NAMES: Final[Mapping[wire.ConnectorPart.ValueType, str]] = {
    wire.CONNECTOR_PART_FINDS_SPLITS: "splits",
    wire.CONNECTOR_PART_READS: "source",
    wire.CONNECTOR_PART_MAKES_BATCHES: "batches",
    wire.CONNECTOR_PART_WRITES: "sink",
}
"""What a part is, in a word. The console uses the same words."""


def connector_parts(spec: specs.TopologySpec) -> dict[str, wire.ConnectorPart.ValueType]:
    """Return, by name, the computations that are parts of a source or of a sink."""
    batches = {stream for one in spec.computations if one.implementation == MAKES_BATCHES for stream in one.outputs}
    found: dict[str, wire.ConnectorPart.ValueType] = {}
    for one in spec.computations:
        if one.reads:
            finds = one.begins_by_itself
            found[one.name] = wire.CONNECTOR_PART_FINDS_SPLITS if finds else wire.CONNECTOR_PART_READS
        elif one.implementation == MAKES_BATCHES:
            found[one.name] = wire.CONNECTOR_PART_MAKES_BATCHES
        elif any(edge.stream in batches for edge in one.inputs):
            found[one.name] = wire.CONNECTOR_PART_WRITES
    return found


def inner_streams(spec: specs.TopologySpec) -> set[str]:
    """Return the full names of the streams between the two parts of a source or of a sink."""
    first = {wire.CONNECTOR_PART_FINDS_SPLITS, wire.CONNECTOR_PART_MAKES_BATCHES}
    parts = connector_parts(spec)
    return {stream for one in spec.computations if parts.get(one.name) in first for stream in one.outputs}
