"""Blocks that keep records until a timer fires, and have weak productions (section 6.1.3).

A hook's weak productions depend on its input alone. The state that a timer reads was committed before the timer was
due, so the same timer always reads the same state. That holds for records that are not late. A record that may be late
is forwarded at once: an uncommitted run of the timer might have read it, and the next run might not.

The numbers of steps depend on the order of a run, and not on the input. So these blocks number nothing.
"""

from __future__ import annotations

import millwheel as mw
from simulation.blocks.base import Block, look
from simulation.blocks.records import Item

__all__ = ["WeakDelay", "WeakWindow"]

_Kept = dict[str, list[Item]]
"""By a timer's tag."""


class _Keeping(Block):
    """The common base of both blocks."""

    def passes(self, ctx: mw.Context[_Kept], record: mw.Record[Item]) -> bool:
        """Forward a record at once if it may be late; returns whether it did."""
        look(self, ctx, record)
        item = record.value
        if item.tainted or self.loose:
            self.emit(ctx, Item(item.ids, item.a, item.b, True, item.steps))
            return True
        # A deposed owner may see it as late, so this is no violation. The check of sinks' watermarks covers it.
        return False


class WeakWindow(_Keeping, mw.Computation[Item, _Kept]):
    """Collects each key's records in tumbling windows, and produces several records at a window's end.

    There is one record for each id, and one record of chaff, which carries the steps of all. So a firing has several
    productions.
    """

    def __init__(self, name: str, outputs: list[str], width: int) -> None:
        super().__init__(name, outputs)
        self.width = width

    def process_record(self, ctx: mw.Context[_Kept], record: mw.Record[Item]) -> None:
        """Put the record into its window, unless it may be late."""
        if self.passes(ctx, record):
            return
        end = record.timestamp - record.timestamp % self.width + self.width
        ctx.state.setdefault(str(end), []).append(record.value)
        ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[_Kept], timer: mw.Timer) -> None:
        """The window is complete."""
        if timer.timestamp > ctx.watermark:
            self.complain(f"timer {timer} of key {ctx.key} fires at watermark {ctx.watermark} (G6)")
        kept = sorted(ctx.state.pop(timer.tag, []), key=lambda one: (one.ids, one.b))
        ids = sorted(one for item in kept for one in item.ids)
        self.emit(ctx, Item([], ctx.key, f"{len(kept)}~", False, [step for item in kept for step in item.steps]))
        for one in ids:
            self.emit(ctx, Item([one], ctx.key, f"{chr(33 + one % 90)}{len(ids)}"))


class WeakDelay(_Keeping, mw.Computation[Item, _Kept]):
    """Sends each record after some wall time, in two parts: its ids, and chaff."""

    def __init__(self, name: str, outputs: list[str], wait: int) -> None:
        super().__init__(name, outputs)
        self.wait = wait

    def process_record(self, ctx: mw.Context[_Kept], record: mw.Record[Item]) -> None:
        """Keep the record for a while. Chaff is forwarded at once, because no two records may share a timer."""
        item = record.value
        if self.passes(ctx, record):
            return
        if not item.ids:
            self.emit(ctx, item)
            return
        tag = f"{record.timestamp} {item.ids[0]}"
        ctx.state[tag] = [item]
        ctx.set_timer(mw.Timestamp(ctx.now + self.wait), tag, domain=mw.TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: mw.Context[_Kept], timer: mw.Timer) -> None:
        """Forward the record: its time has come."""
        if timer.timestamp > ctx.now:
            self.complain(f"processing-time timer {timer} of key {ctx.key} fires at {ctx.now} (G6)")
        timestamp = mw.Timestamp(int(timer.tag.partition(" ")[0]))
        for item in ctx.state.pop(timer.tag, []):
            self.emit(ctx, item, timestamp)
            self.emit(ctx, Item([], item.a, f"{chr(33 + sum(item.ids) % 90)}~"), timestamp)
