"""Common parts of all blocks: they number a key's steps, collect its records, and report violations."""

from __future__ import annotations

from typing import Any

import millwheel as mw
from simulation.blocks.records import SEEN, STATELESS, Bucket, Gathered, Item, Kept, KeptMarked, Numbered, Step, Tallied

__all__ = ["Block", "check_due", "gather", "look", "number", "numbered", "release", "turns"]


class Block:
    """The base class of blocks."""

    def __init__(self, name: str, outputs: list[str]) -> None:
        self.name = name
        self.outputs = outputs
        self.feedback: dict[str, str] = {}
        """The feedback streams of the block, with their keys."""
        self.loose = False
        """Whether its input may be late, because it gets duplicates or records from before it was added.

        So its output may be late.
        """

        self.joins: frozenset[str] = frozenset()
        """The streams to which it was added after records had been sent.

        Records of these streams that are late here are late after it.
        """

    def complain(self, what: str) -> None:
        """Record a violation."""
        SEEN.append(f"{self.name}: {what}")

    def emit(self, ctx: Any, item: Item, timestamp: Any = None) -> None:
        """Produce on every output."""
        for stream in self.outputs:
            ctx.produce(stream, item, timestamp=timestamp)


def look(block: Block, ctx: Any, record: mw.Record[Item]) -> None:
    """Report a record whose late flag does not match the watermark."""
    if record.late is not (record.timestamp < ctx.watermark):
        claim = "late" if record.late else "not late"
        block.complain(f"a record at {record.timestamp} of key {ctx.key} is {claim} at watermark {ctx.watermark} (G14)")


def turns(number: int) -> int:
    """How often a loop runs for an injected record."""
    return 1 + number % 3


def number(block: Block, ctx: Any, record: mw.Record[Item]) -> None:
    """Number a key's record, and forward it."""
    block.emit(ctx, numbered(block, ctx, record))


def numbered(block: Block, ctx: Any, record: mw.Record[Item]) -> Item:
    """The record with the key's next number. Records of a feedback edge may be late."""
    item = record.value
    look(block, ctx, record)
    tainted = item.tainted or block.loose or (record.late and record.stream in block.joins)
    if isinstance(ctx.state, Numbered | Kept | KeptMarked):
        ctx.state.count += 1
        reached = ctx.state.count
    elif isinstance(ctx.state, Tallied):
        ctx.state.counts.append(len(ctx.state.counts) + 1)
        reached = len(ctx.state.counts)
    else:
        reached = ctx.state = ctx.state + 1
    forgiven = tainted or record.stream in block.feedback
    step = Step(block.name, ctx.key, reached, ctx.watermark, record.late and not forgiven)
    return Item(item.ids, item.a, item.b, tainted, [*item.steps, step])


def gather(block: Block, ctx: Any, tag: str, record: mw.Record[Item], timestamp: int) -> None:
    """Add a record to a key's bucket."""
    item, state = record.value, ctx.state
    look(block, ctx, record)
    tainted = item.tainted or block.loose or (record.late and record.stream in block.joins)
    forgiven = tainted or record.stream in block.feedback
    step = Step(block.name, ctx.key, state.number + 1, ctx.watermark, record.late and not forgiven)
    state.number += 1
    bucket = state.buckets.setdefault(tag, Bucket())
    bucket.ids += item.ids
    bucket.steps += [*item.steps, step]
    bucket.tainted |= tainted
    bucket.timestamp = timestamp


def check_due(block: Block, ctx: Any, timer: mw.Timer) -> None:
    """Report a timer that fires for another time than the one it was last set to."""
    bucket = ctx.state.buckets.get(timer.tag)
    if bucket is not None and bucket.due != timer.timestamp:
        block.complain(f"timer {timer} of key {ctx.key} fires, and it was set to {bucket.due} (G6)")


def _least(timer: mw.Timer) -> int:
    """The lowest timestamp that a firing may produce at: for an event-time timer, the timer's timestamp."""
    return mw.MIN_TIMESTAMP if timer.domain is mw.TimeDomain.PROCESSING_TIME else timer.timestamp


def release(block: Block, ctx: Any, timer: mw.Timer) -> None:
    """Forward a key's bucket."""
    state: Gathered = ctx.state
    bucket = state.buckets.pop(timer.tag, None)
    if bucket is None:
        again = "fires a second time (G6)" if state.number else STATELESS
        block.complain(f"timer {timer} of key {ctx.key} {again}")
        return
    state.number += 1
    steps = [*bucket.steps, Step(block.name, ctx.key, state.number, ctx.watermark)]
    a, b = ctx.key, f"{chr(33 + sum(bucket.ids) % 90)}{len(bucket.ids)}"
    block.emit(ctx, Item(bucket.ids, a, b, bucket.tainted, steps), max(bucket.timestamp, _least(timer)))
