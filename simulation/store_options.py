"""Plan options for the store and the coordinator: the kind of store, and leases while machines are suspended."""

from __future__ import annotations

from random import Random

from simulation.plan import Plan

__all__ = ["embedded", "on_cassandra", "suspended"]


def on_cassandra(plan: Plan, chance: Random) -> None:
    """The store is the product's Cassandra store on a simulated Cassandra; see :mod:`simulation.cassandra`."""
    plan.store = "cassandra"
    plan.store_ways = {
        "unfinished": chance.choice((0.0, 0.01, 0.05)),
        "partial": chance.choice((0.0, 0.01, 0.05)),
        "chunk": chance.choice((200, 1 << 20, 1 << 20)),
        "rows": chance.choice((2, 100, 100)),
        "entries": chance.choice((3, 64, 64)),
        "writers": 2,
        "heads": chance.choice((1, 10_000)),
    }
    # Simulated entries have few bytes, so they are deflated in half of the runs, and some of these in several pieces.
    deflating = Random(f"deflating {plan.seed}")
    plan.store_ways["deflate"] = deflating.choice((1, 24 << 10))
    plan.store_ways["piece"] = deflating.choice((64, 256 << 10))


def suspended(plan: Plan, chance: Random) -> None:
    """Machines are suspended for longer than their leases.

    The clocks that measure leases may or may not count that time.
    """
    plan.lease_clock = chance.choice(("boot", "steady"))
    plan.suspensions = chance.randint(1, 3)
    plan.etcd_suspended = chance.choice(("", "counts", "stands"))


def embedded(plan: Plan, chance: Random) -> None:
    """The store is the product's embedded one, on a machine that may lose power; see :mod:`simulation.machine`."""
    if not plan.store:
        plan.store = "embedded"
        plan.store_ways = {"pause": chance.choice((0.0, 0.0005, 0.005))}
        plan.power_cuts = chance.choice((0, 1, 1, 2))
        if any(not node["exactly_once"] and not node["strong"] for node in plan.nodes):
            # Its commits are confirmed before they are synced, so a loss of power may undo the last of them.
            plan.store_ways["survives"] = True
            plan.power_cuts = 0
