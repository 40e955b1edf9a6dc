"""Plans with connectors: splits that come, give records and end, for a store outside of the cluster."""

from __future__ import annotations

from random import Random

from millwheel.model.time import seconds
from simulation.blocks import Feed, FeedSplit, Fetched
from simulation.plan import FIRST, Plan

__all__ = ["connectors"]


def connectors(plan: Plan, chance: Random) -> None:
    """A source reads some splits, of which one may be far ahead in time, and a sink writes what it has read."""
    if plan.ending or plan.returns_at or plan.wide:
        return  # then the store has a part of the records, and the streams' sinks show as much
    numbers = iter(range(1_000_000))
    splits = []
    for split in range(chance.randint(1, 3)):
        found, gap, at = chance.uniform(0.0, 0.6) * plan.span, chance.choice((0.02, 0.3)), FIRST
        records = []
        for _ in range(chance.choice((2, 6, 12))):
            at += chance.choice((0, 100_000, 2_000_000))
            # Keys of other splits, too: the records of each split keep their order there.
            records.append((Fetched(next(numbers), f"s{split}", chance.choice("abc")), at))
        splits.append(FeedSplit(f"{chance.choice('!Mz')}{split}", found, gap, records))
    plan.feed = Feed(
        splits,
        most=chance.choice((1, 2, 5)),
        shards=chance.choice((1, 1, 3)),
        batch_records=chance.choice((1, 3, 100)),
        allowed_skew=chance.choice((None, int(seconds(3)))),
        rate=chance.choice((None, None, 5.0)),
        tables=chance.random() < 0.5,
    )
