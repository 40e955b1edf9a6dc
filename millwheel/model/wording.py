"""Counts, states and outcomes in words, for messages and metrics."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.model.time import Timestamp, format_timestamp
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome

__all__ = ["clock_time", "counted", "named", "refusal_name", "state_name"]


def clock_time(at: int) -> str:
    """The time of day of a timestamp.

    >>> clock_time(1_700_000_000_000_000)
    '22:13:20 UTC'
    """
    return f"{format_timestamp(Timestamp(at))[11:19]} UTC"


def counted(count: int, what: str) -> str:
    """A count with its noun: ``1 record``, ``2,000 records``."""
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def named(names: Sequence[str], most: int = 5) -> str:
    """Name the first of many, and count the others, so that a text has a bound.

    >>> named(["w1", "w2", "w3"], most=2)
    'w1, w2 and 1 more'
    """
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def refusal_name(outcome: DeliveryOutcome.ValueType) -> str:
    """Return the reason of a refusal in lower case: ``full``, ``not_owner``, …"""
    return DeliveryOutcome.Name(outcome).removeprefix("DELIVERY_OUTCOME_").removeprefix("REFUSED_").lower()


def state_name(state: catalog.TopologyState.ValueType) -> str:
    """Return the state's name in lower case: ``running``, ``draining``, …"""
    return catalog.TopologyState.Name(state).removeprefix("TOPOLOGY_STATE_").lower()
