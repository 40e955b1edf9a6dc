"""Blocks that send each record on by itself, at once."""

from __future__ import annotations

import asyncio
import random

import millwheel as mw
from simulation.blocks.base import Block, number, numbered, turns
from simulation.blocks.records import DIVIDED, FAILED, Item, Numbered, Tallied

__all__ = ["Count", "Flaky", "Loop", "Pass", "Poison", "Recount", "Scatter", "Slow", "Tally"]


class Pass(Block, mw.Computation[Item, int]):
    """Sends on what it gets: a function of its input alone, as weak productions ask for."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Send it on."""
        item = record.value
        self.emit(ctx, Item(item.ids, item.a, item.b, item.tainted or self.loose, item.steps))


class Scatter(Block, mw.Computation[Item, int]):
    """Sends each id on by itself, and chaff before and behind: several productions of one call to each stream.

    What it sends is a function of its input alone, as weak productions ask for. Chaff brings forth one record of chaff.
    """

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Send the parts on, each under a key of its own."""
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
        """Number it, and send it on."""
        number(self, ctx, record)


class Recount(Block, mw.Computation[Item, Numbered]):
    """As :class:`Count`, in a later version: its states are others, and those that are stored are migrated."""

    state_version = 2

    def migrate(self, stored: mw.StoredState) -> Numbered:
        """What :class:`Count` has stored."""
        return Numbered(stored.read(int))

    def process_record(self, ctx: mw.Context[Numbered], record: mw.Record[Item]) -> None:
        """Number it, and send it on."""
        number(self, ctx, record)


class Tally(Block, mw.Computation[Item, Tallied]):
    """As :class:`Recount`, later still: it migrates the states of both."""

    state_version = 3

    def migrate(self, stored: mw.StoredState) -> Tallied:
        """What :class:`Count` or :class:`Recount` has stored."""
        count = stored.read(int) if stored.version == 1 else stored.read(Numbered).count
        return Tallied(list(range(1, count + 1)))

    def process_record(self, ctx: mw.Context[Tallied], record: mw.Record[Item]) -> None:
        """Number it, and send it on."""
        number(self, ctx, record)


class Slow(Block, mw.Computation[Item, int]):
    """As :class:`Count`, but waits for something outside first: other keys go on, the key's order stays.

    ``longest``: milliseconds that it waits for a few of the records.
    """

    def __init__(self, name: str, outputs: list[str], longest: int = 0) -> None:
        super().__init__(name, outputs)
        self.longest = longest

    async def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Wait, number it, send it on."""
        total = sum(record.value.ids)
        await asyncio.sleep(0.001 * (self.longest if self.longest and total % 6 == 0 else total % 50))
        number(self, ctx, record)


class Flaky(Block, mw.Computation[Item, int]):
    """As :class:`Count`, but fails now and then, after it has done its work: nothing of that may be left."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number it, send it on, and fail, or not."""
        number(self, ctx, record)
        if random.random() < 0.2:
            raise ValueError("this went wrong")


class Poison(Block, mw.Computation[Item, int]):
    """As :class:`Count`, but some records fail again and again for a while: their keys wait, and others go on."""

    def __init__(self, name: str, outputs: list[str], numbers: list[int], attempts: int) -> None:
        super().__init__(name, outputs)
        self.numbers = numbers
        self.attempts = attempts

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number it and send it on, or fail."""
        number(self, ctx, record)
        poisoned = next((one for one in record.value.ids if one in self.numbers), 0)
        if poisoned and FAILED[poisoned] < self.attempts:
            FAILED[poisoned] += 1
            raise ValueError(f"record {poisoned} is poison for now")


class Loop(Block, mw.Computation[Item, int]):
    """Numbers the records of each key, and sends each to itself some times before it sends it on."""

    def process_record(self, ctx: mw.Context[int], record: mw.Record[Item]) -> None:
        """Number it, and send it round, or on."""
        before = sum(step.computation == self.name for step in record.value.steps)
        item = numbered(self, ctx, record)
        back, more = f"{self.name}-again", before + 1 < (turns(item.ids[0]) if item.ids else 1)
        if more or before:
            # Another interval between here and there, or there, lets its watermark go on meanwhile (G7).
            item.tainted |= back not in self.feedback or self.name in DIVIDED
        if more:
            ctx.produce(back, item)
        else:
            self.emit(ctx, item)
