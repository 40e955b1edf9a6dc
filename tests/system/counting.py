"""A load that verifies itself: counts per key and window, and totals of those under other keys (figure 2)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

import millwheel as mw

__all__ = ["WINDOW", "Event", "Load", "Total", "WindowCount", "counting"]

WINDOW = 100_000
"""Microseconds."""

_GROUPS = 7


class Event(msgspec.Struct, array_like=True):
    key: str
    number: int


class WindowCount(msgspec.Struct, array_like=True, frozen=True):
    key: str
    end: int
    count: int
    group: str


class Total(msgspec.Struct, array_like=True, frozen=True):
    group: str
    windows: int
    records: int


class WindowCounter(mw.Computation[Event, dict[int, int]]):
    """Counts the records of each key and window; produces a count when its window is complete."""

    def process_record(self, ctx: mw.Context[dict[int, int]], record: mw.Record[Event]) -> None:
        end = record.timestamp - record.timestamp % WINDOW + WINDOW
        counts = ctx.state
        if end not in counts:
            ctx.set_timer(mw.Timestamp(end), str(end))
        counts[end] = counts.get(end, 0) + 1

    def process_timer(self, ctx: mw.Context[dict[int, int]], timer: mw.Timer) -> None:
        end = int(timer.tag)
        ctx.produce("windows", WindowCount(ctx.key, end, ctx.state.pop(end), f"group-{end // WINDOW % _GROUPS}"))


class Sums(msgspec.Struct):
    windows: int = 0
    records: int = 0


class Adder(mw.Computation[WindowCount, Sums]):
    """Adds up windows and records of each group; produces every new total."""

    def process_record(self, ctx: mw.Context[Sums], record: mw.Record[WindowCount]) -> None:
        sums = ctx.state
        sums.windows += 1
        sums.records += record.value.count
        ctx.produce("totals", Total(ctx.key, sums.windows, sums.records))


counting = mw.Topology("counting")
counting.source("events", Event)
counting.add(WindowCounter, name="counter", inputs={"events": mw.key("key")}, outputs={"windows": WindowCount})
counting.add(Adder, inputs={"windows": mw.key("group")}, outputs={"totals": Total})


@dataclass(frozen=True)
class Load:
    """Records that a seed determines: number ``i`` has a time of at least ``i`` times ``spacing`` microseconds."""

    seed: int
    spacing: int = 500
    keys: int = 40

    def records(self) -> Iterator[tuple[Event, int]]:
        """Records and their timestamps, without end; out of order by less than a window."""
        chance = random.Random(self.seed)
        number = 0
        while True:
            timestamp = number * self.spacing + chance.randrange(WINDOW * 3 // 4)
            yield Event(f"key-{chance.randrange(self.keys)}", number), timestamp
            number += 1

    def expected(self, count: int) -> Counter[WindowCount]:
        """What the windows of the first ``count`` records have to be, each once."""
        sums: Counter[tuple[str, int]] = Counter()
        for _, (event, timestamp) in zip(range(count), self.records(), strict=False):
            sums[event.key, timestamp - timestamp % WINDOW + WINDOW] += 1
        return Counter(
            WindowCount(key, end, total, f"group-{end // WINDOW % _GROUPS}") for (key, end), total in sums.items()
        )
