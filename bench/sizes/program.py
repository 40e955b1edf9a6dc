"""The measured topologies: one stream, and 1, 10 or 100 computations that count its records by key."""

from __future__ import annotations

import msgspec

import millwheel as mw

__all__ = ["CONSUMERS", "Sized", "consumed_by_1", "consumed_by_10", "consumed_by_100"]

CONSUMERS = (1, 10, 100)


class Sized(msgspec.Struct):
    """A record with a payload."""

    key: str
    payload: bytes


class Counter(mw.Computation[Sized, int]):
    """Counts its key's records."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Sized]) -> None:
        """Count the record, whose value is decoded."""
        ctx.state += bool(record.value.key)


def _consumed_by(count: int) -> mw.Topology:
    topology = mw.Topology(f"consumed-by-{count}")
    topology.source("records", Sized)
    for number in range(count):
        topology.add(Counter, name=f"counter-{number}", inputs={"records": mw.key("key")})
    return topology


consumed_by_1 = _consumed_by(1)
consumed_by_10 = _consumed_by(10)
consumed_by_100 = _consumed_by(100)
