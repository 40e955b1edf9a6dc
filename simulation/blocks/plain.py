"""Blocks that forward each record independently and at once."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import millwheel as mw
from simulation.blocks.base import Block, number, numbered, turns
from simulation.blocks.records import DIVIDED, FAILED, Item, Numbered, Tallied

__all__ = ["FLAKINESS", "Count", "Flaky", "Loop", "Pass", "Poison", "Recount", "Scatter", "Slow", "Tally"]


FLAKINESS: Final = 0.2
"""The share of its hooks that :class:`Flaky` fails."""


class Pass(Block, mw.Computation[Item, int]):
    """Forwards its input. The output is a function of the input alone, as weak productions require."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Forward the record."""
        item = record.value
        self.emit(ctx, Item(item.ids, item.a, item.b, item.tainted or self.loose, item.steps))


class Scatter(Block, mw.Computation[Item, int]):
    """Sends each id separately, with chaff before and after: one call has several productions on each stream.

    Its output is a function of its input alone, as weak productions require. From chaff it makes one record of chaff.
    """

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Send the parts, each under a different key."""
        item = record.value
        tainted = item.tainted or self.loose
        total = sum(item.ids)
        parts = [[one] for one in item.ids]
        for place, ids in enumerate([[], *parts, []] if parts else [[]]):
            b = item.b if ids else f"{chr(33 + (total + place) % 90)}~"
            self.emit(ctx, Item(ids, item.a, b, tainted, item.steps))


class Count(Block, mw.Computation[Item, int]):
    """Numbers the records of each key."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number the record and forward it."""
        number(self, ctx, record)


class Recount(Block, mw.Computation[Item, Numbered]):
    """A later version of :class:`Count`: its state has another format, and it migrates stored states."""

    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Numbered:
        """Migrate a state of :class:`Count`."""
        return Numbered(stored.read(int))

    def process_record(self, ctx: mw.Context[Numbered], record: mw.Record[Item]) -> None:
        """Number the record and forward it."""
        number(self, ctx, record)


class Tally(Block, mw.Computation[Item, Tallied]):
    """A later version of :class:`Recount`: it migrates the states of both earlier versions."""

    state_version = 3

    def migrate(self, stored: mw.StoredState) -> Tallied:
        """Migrate a state of :class:`Count` or :class:`Recount`."""
        count = stored.read(int) if stored.version == 1 else stored.read(Numbered).count
        return Tallied(list(range(1, count + 1)))

    def process_record(self, ctx: mw.Context[Tallied], record: mw.Record[Item]) -> None:
        """Number the record and forward it."""
        number(self, ctx, record)


class Slow(Block, mw.Computation[Item, int]):
    """Like :class:`Count`, but it first waits for an external event. Other keys continue, and the key's order stays.

    ``longest``: milliseconds that it waits for some of the records.
    """

    def __init__(self, name: str, outputs: list[str], longest: int = 0) -> None:
        super().__init__(name, outputs)
        self.longest = longest

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Wait, number the record and forward it."""
        total = sum(record.value.ids)
        await asyncio.sleep(0.001 * (self.longest if self.longest and total % 6 == 0 else total % 50))
        number(self, ctx, record)


class Flaky(Block, mw.Computation[Item, int]):
    """Like :class:`Count`, but it sometimes fails after its work. A failed call must have no effect."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number the record and forward it, and sometimes fail."""
        number(self, ctx, record)
        if random.random() < FLAKINESS:
            raise ValueError("this went wrong")


class Poison(Block, mw.Computation[Item, int]):
    """Like :class:`Count`, but some records fail repeatedly for a while. Their keys wait while other keys continue."""

    def __init__(self, name: str, outputs: list[str], numbers: list[int], attempts: int) -> None:
        super().__init__(name, outputs)
        self.numbers = numbers
        self.attempts = attempts

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number the record and forward it, or fail."""
        number(self, ctx, record)
        poisoned = next((one for one in record.value.ids if one in self.numbers), 0)
        if poisoned and FAILED[poisoned] < self.attempts:
            FAILED[poisoned] += 1
            raise ValueError(f"record {poisoned} is poison for now")


class Loop(Block, mw.Computation[Item, int]):
    """Numbers the records of each key, and sends each record to itself some times before it forwards it."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number the record, and send it back or forward it."""
        before = sum(step.computation == self.name for step in record.value.steps)
        item = numbered(self, ctx, record)
        back, more = f"{self.name}-again", before + 1 < (turns(item.ids[0]) if item.ids else 1)
        if more or before:
            # The cycle passes another computation, or this one has several intervals. Their watermarks may advance
            # meanwhile, so the record may be late (G7).
            item.tainted |= back not in self.feedback or self.name in DIVIDED
        if more:
            ctx.produce(back, item)
        else:
            self.emit(ctx, item)
