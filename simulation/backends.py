"""Plan options for what is beneath the cluster: whose ways its store has."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.plan import Plan

__all__ = ["on_cassandra", "suspended"]


def on_cassandra(plan: Plan, chance: Random) -> None:
    """The store is the product's on a simulated Cassandra; see :mod:`simulation.cassandra`."""
    plan.store = "cassandra"
    plan.store_ways = {
        "unfinished": chance.choice((0.0, 0.01, 0.05)),
        "partial": chance.choice((0.0, 0.01, 0.05)),
        "chunk": chance.choice((200, 1 << 20)),
        "rows": chance.choice((2, 100)),
        "entries": chance.choice((3, 64)),
        "heads": chance.choice((1, 10_000)),
    }


def suspended(plan: Plan, chance: Random) -> None:
    """Machines are suspended for longer than their leases; leases are judged by clocks that count that, or do not."""
    plan.lease_clock = chance.choice(("boot", "steady"))
    plan.suspensions = chance.randint(1, 3)
    plan.etcd_suspended = chance.choice(("", "counts", "stands"))
