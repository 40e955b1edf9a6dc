"""Blocks that keep records until a timer fires, and have strong productions."""

from __future__ import annotations

from typing import Final

import millwheel as mw
from simulation.blocks.base import Block, check_due, gather, look, release
from simulation.blocks.records import Bucket, Gathered, Item

__all__ = ["Batch", "Brief", "Delay", "Window"]

_ONLY: Final = "only"


class Window(Block, mw.Computation[Item, Gathered]):
    """Collects each key's records in tumbling windows, and forwards a window when the low watermark has passed it."""

    def __init__(self, name: str, outputs: list[str], width: int) -> None:
        super().__init__(name, outputs)
        self.width = width

    def process_record(self, ctx: mw.Context[Gathered], record: mw.Record[Item]) -> None:
        """Put the record into its window."""
        for tag, bucket in ctx.state.buckets.items():
            first = next(step.watermark for step in bucket.steps if step.computation == self.name)
            if first < bucket.due <= ctx.watermark:  # a timer that is due when it is set may wait for its commit
                claim = f"a record at {record.timestamp} of key {ctx.key} runs at watermark {ctx.watermark}"
                self.complain(f"{claim}, before timer {tag} has fired (G5)")
        end = record.timestamp - record.timestamp % self.width + self.width
        gather(self, ctx, str(end), record, end)
        ctx.state.buckets[str(end)].due = end
        ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[Gathered], timer: mw.Timer) -> None:
        """The window is complete."""
        if timer.timestamp > ctx.watermark:
            self.complain(f"timer {timer} of key {ctx.key} fires at watermark {ctx.watermark} (G6)")
        check_due(self, ctx, timer)
        state = ctx.state
        bucket = state.buckets.get(timer.tag)
        if timer.timestamp < state.fired and bucket is not None and not bucket.tainted:
            self.complain(f"timer {timer} of key {ctx.key} fires after that of {state.fired} (G5)")
        state.fired = max(state.fired, timer.timestamp)
        release(self, ctx, timer)


class Brief(Block, mw.Computation[Item, dict[str, Bucket]]):
    """Like :class:`Window`, but a key without an open window has no state: its state equals the type's default (4.4).

    It numbers nothing and reports nothing. The sinks show a record that it loses or repeats.
    """

    def __init__(self, name: str, outputs: list[str], width: int) -> None:
        super().__init__(name, outputs)
        self.width = width

    def process_record(self, ctx: mw.Context[dict[str, Bucket]], record: mw.Record[Item]) -> None:
        """Put the record into its window."""
        item = record.value
        look(self, ctx, record)
        end = record.timestamp - record.timestamp % self.width + self.width
        bucket = ctx.state.setdefault(str(end), Bucket(timestamp=end))
        bucket.ids += item.ids
        bucket.steps += item.steps
        bucket.tainted |= item.tainted or self.loose or (record.late and record.stream in self.feedback)
        ctx.set_timer(mw.Timestamp(end), str(end))

    def process_timer(self, ctx: mw.Context[dict[str, Bucket]], timer: mw.Timer) -> None:
        """The window is complete."""
        bucket = ctx.state.pop(timer.tag, None)
        if bucket is not None:
            a, b = ctx.key, f"{chr(33 + sum(bucket.ids) % 90)}{len(bucket.ids)}"
            self.emit(ctx, Item(bucket.ids, a, b, bucket.tainted, bucket.steps), timer.timestamp)


class Delay(Block, mw.Computation[Item, Gathered]):
    """Forwards each record after some wall time."""

    def __init__(self, name: str, outputs: list[str], wait: int) -> None:
        super().__init__(name, outputs)
        self.wait = wait

    def process_record(self, ctx: mw.Context[Gathered], record: mw.Record[Item]) -> None:
        """Keep the record for a while."""
        tag = str(record.value.ids[0]) if record.value.ids else f"chaff {record.value.b}"
        gather(self, ctx, tag, record, record.timestamp)
        due = ctx.state.buckets[tag].due = ctx.now + self.wait
        ctx.set_timer(mw.Timestamp(due), tag, domain=mw.TimeDomain.PROCESSING_TIME)

    def process_timer(self, ctx: mw.Context[Gathered], timer: mw.Timer) -> None:
        """Forward the record: its time has come."""
        if timer.timestamp > ctx.now:
            self.complain(f"processing-time timer {timer} of key {ctx.key} fires at {ctx.now} (G6)")
        check_due(self, ctx, timer)
        release(self, ctx, timer)


class Batch(Block, mw.Computation[Item, Gathered]):
    """Forwards each key's records in batches of three, and sets a hold meanwhile.

    A timer releases an incomplete batch.
    """

    def __init__(self, name: str, outputs: list[str], patience: int) -> None:
        super().__init__(name, outputs)
        self.patience = patience

    def process_record(self, ctx: mw.Context[Gathered], record: mw.Record[Item]) -> None:
        """Add the record to the current batch."""
        bucket = ctx.state.buckets.get(_ONLY)
        first = record.timestamp if bucket is None else min(bucket.timestamp, record.timestamp)
        gather(self, ctx, _ONLY, record, first)
        ctx.set_hold(mw.Timestamp(first))
        if bucket is None:
            due = ctx.state.buckets[_ONLY].due = record.timestamp + self.patience
            ctx.set_timer(mw.Timestamp(due), _ONLY)
        if len(ctx.state.buckets[_ONLY].ids) >= 3:
            ctx.cancel_timer(_ONLY)
            self._release(ctx, record.timestamp)

    def process_timer(self, ctx: mw.Context[Gathered], timer: mw.Timer) -> None:
        """Release the incomplete batch: no more records arrived in time."""
        if _ONLY not in ctx.state.buckets:
            self.complain(f"timer {timer} of key {ctx.key} fires though it was cancelled (G6)")
        else:
            check_due(self, ctx, timer)
            self._release(ctx, timer.timestamp)

    def _release(self, ctx: mw.Context[Gathered], now: mw.Timestamp) -> None:
        """Release the batch at the timestamp of its first record, which the hold protects.

        A hold for late records may be too late.
        """
        bucket = ctx.state.buckets[_ONLY]
        if bucket.tainted:
            bucket.timestamp = now
        release(self, ctx, mw.Timer(_ONLY, now, domain=mw.TimeDomain.PROCESSING_TIME))
        ctx.clear_hold()
