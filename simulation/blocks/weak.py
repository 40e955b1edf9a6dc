"""Blocks that keep records until a timer fires, and produce weakly (section 6.1.3).

What a hook produces weakly depends on its input alone. What a timer finds in the state was committed before the timer
was due, so the same timer always finds the same. That holds for records that are in time. A record that may be late is
sent on at once: a run of the timer that is not committed might have found it, and the next one not.

Steps are numbered in the order of a run, and not by the input. So these blocks number nothing.
"""

from __future__ import annotations

import millwheel as mw
from simulation.blocks.base import Block, look
from simulation.blocks.records import Item

__all__ = ["WeakDelay", "WeakWindow"]

_Kept = dict[str, list[Item]]
"""By a timer's tag."""


class _Keeping(Block):
    """What both have in common."""

    def passes(self, ctx: mw.Context[_Kept], record: mw.Record[Item]) -> bool:
        """Send a record on at once that may be late; whether it was one."""
        look(self, ctx, record)
        item = record.value
        if item.tainted or self.loose:
            self.emit(ctx, Item(item.ids, item.a, item.b, True, item.steps))
            return True
        return False  # if it is late all the same, a deposed owner may have been shown it: sinks' watermarks judge that


class WeakWindow(_Keeping, mw.Computation[Item, _Kept]):
    """Gathers each key's records by tumbling windows: at their ends it sends the ids, one record for all and one each.

    The one for all is chaff, with the steps. So a firing has several productions.
    """

    def __init__(self, name: str, outputs: list[str], width: int) -> None:
        super().__init__(name, outputs)
        self.width = width

    def process_record(self, ctx: mw.Context[_Kept], record: mw.Record[Item]) -> None:
        """Put it into its window, unless it may be late."""
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
    """Sends each record on after some wall time, in two parts: its ids, and chaff."""

    def __init__(self, name: str, outputs: list[str], wait: int) -> None:
        super().__init__(name, outputs)
        self.wait = wait

    def process_record(self, ctx: mw.Context[_Kept], record: mw.Record[Item]) -> None:
        """Keep it for a while. Chaff goes on at once: no two records may have one timer."""
        item = record.value
        if self.passes(ctx, record):
            return
        if not item.ids:
            self.emit(ctx, item)
            return
        tag = f"{record.timestamp} {item.ids[0]}"
        ctx.state[tag] = [item]
        ctx.set_timer(mw.Timestamp(ctx.now + self.wait), tag, wall=True)

    def process_timer(self, ctx: mw.Context[_Kept], timer: mw.Timer) -> None:
        """It was kept long enough."""
        if timer.timestamp > ctx.now:
            self.complain(f"wall timer {timer} of key {ctx.key} fires at {ctx.now} (G6)")
        timestamp = mw.Timestamp(int(timer.tag.partition(" ")[0]))
        for item in ctx.state.pop(timer.tag, []):
            self.emit(ctx, item, timestamp)
            self.emit(ctx, Item([], item.a, f"{chr(33 + sum(item.ids) % 90)}~"), timestamp)
