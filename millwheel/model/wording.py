"""Counts and states in words, for messages."""

from __future__ import annotations

from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["counted", "state_name"]


def counted(count: int, what: str) -> str:
    """A count with its noun: ``1 record``, ``2,000 records``."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def state_name(state: catalog.TopologyState.ValueType) -> str:
    """Return the state's name in lower case: ``running``, ``draining``, …"""
    return catalog.TopologyState.Name(state).removeprefix("TOPOLOGY_STATE_").lower()
