"""Topologies that the sink writes to. Their outputs show every record that took effect."""

from __future__ import annotations

import msgspec

import millwheel as mw


class Trip(msgspec.Struct):
    id: str
    city: str
    at: int
    load: float | None = None
    late: bool = False


class Seen(msgspec.Struct):
    """The effect number ``nth`` of ``id``. If ``nth`` is 2, the record is a duplicate."""

    id: str
    nth: int
    at: int
    late: bool


class Count(mw.Computation[Trip, int]):
    """Counts the records of each key, and produces each count to the stream ``output``."""

    def __init__(self, output: str) -> None:
        self.output = output

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Trip]) -> None:
        ctx.state = ctx.state + 1
        ctx.produce(self.output, Seen(ctx.key, ctx.state, record.timestamp, record.late))


def by_city_and_length(trip: Trip) -> str:
    """A key that code computes."""
    return f"{trip.city.upper()}-{len(trip.id)}"


trips = mw.Topology("trips")
trips.source("trips", Trip)
trips.add(Count("seen"), name="per-trip", inputs={"trips": mw.key("id")}, outputs={"seen": Seen})
trips.add(Count("cities"), name="per-city", inputs={"trips": mw.key(by_city_and_length)}, outputs={"cities": Seen})

plain_trips = mw.Topology("plain-trips")
"""Its keys are a column of the rows."""
plain_trips.source("trips", Trip)
plain_trips.add(Count("seen"), name="per-trip", inputs={"trips": mw.key("id")}, outputs={"seen": Seen})
