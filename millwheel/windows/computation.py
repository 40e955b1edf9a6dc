"""Aggregation over tumbling and sliding windows (figure 9's Windower, made general)."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.core.time import Duration, Timestamp
from millwheel.sdk.codecs import Codec
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.model import Record, Timer
from millwheel.windows.aggregates import Aggregator
from millwheel.windows.assigners import Assigner, SessionWindows
from millwheel.windows.result import Result

__all__ = ["Aggregate"]

A = TypeVar("A")


class Pane(msgspec.Struct, Generic[A], array_like=True):
    """One window of one key. The revision is -1 until the first result is produced."""

    end: int
    revision: int
    accumulator: A


Panes = dict[int, Pane[Any]]
"""By window start."""

_NONE: Final = Duration(0)
_PURGE: Final = "purge/"
"""Begins the tags of the timers that end what is kept for late records."""


class Aggregate(Computation[Any, Panes]):
    """One result per key and window, produced when the low watermark has passed the window's end.

    Late records whose windows are still open count like any other. For those that come after their window's
    result, ``allowed_lateness`` (microseconds of event time) says how long windows are kept for them: each then
    produces a corrected Result with the next revision, at the window's end or the watermark, whichever is
    later in event time. Later ones are produced, as they came, to ``too_late`` if that stream is named, else
    dropped. To keep all late records out, set ``late=`` where the computation is added.
    """

    def __init__(
        self,
        windows: Assigner,
        aggregator: Aggregator[Any, Any],
        *,
        output: str = "windows",
        allowed_lateness: Duration = _NONE,
        too_late: str | None = None,
    ) -> None:
        if isinstance(windows, SessionWindows):
            raise UsageError("session windows need SessionAggregate: their bounds depend on the records")
        self.windows = windows
        self.aggregator = aggregator
        self.output = output
        self.allowed_lateness = allowed_lateness
        self.too_late = too_late
        self.state_codec = _panes_codec(aggregator)
        self._add = aggregator.add
        self._new = aggregator.new
        self._windows_of = windows.windows_of

    def process_record(self, ctx: Context[Panes], record: Record[Any]) -> None:
        """Add the record to its windows, and see to it that each produces at its end."""
        panes = ctx.state
        for window in self._windows_of(record.timestamp):
            start = window.start
            pane = panes.get(start)
            if pane is None:
                if window.end <= ctx.watermark:
                    self._open_late(ctx, record, start, window.end)
                    continue
                panes[start] = Pane(window.end, -1, self._add(self._new(), record))
                ctx.set_timer(Timestamp(window.end), str(start))
            else:
                pane.accumulator = self._add(pane.accumulator, record)
                if pane.revision >= 0:
                    self._produce(ctx, pane, start)

    def process_timer(self, ctx: Context[Panes], timer: Timer) -> None:
        """The low watermark has passed a window's end (or what is allowed beyond it)."""
        if timer.tag.startswith(_PURGE):
            ctx.state.pop(int(timer.tag.removeprefix(_PURGE)), None)
        else:
            start = int(timer.tag)
            self._produce(ctx, ctx.state[start], start)
            if self.allowed_lateness:
                ctx.set_timer(Timestamp(timer.timestamp + self.allowed_lateness), _PURGE + timer.tag)
            else:
                del ctx.state[start]
        if not ctx.state:
            del ctx.state

    def _open_late(self, ctx: Context[Panes], record: Record[Any], start: int, end: int) -> None:
        """A record whose window has ended, and is not kept: it had no record before, or its time is over."""
        purge_at = Timestamp(end + self.allowed_lateness)
        if ctx.watermark < purge_at:
            pane = ctx.state[start] = Pane(end, -1, self._add(self._new(), record))
            self._produce(ctx, pane, start)
            ctx.set_timer(purge_at, f"{_PURGE}{start}")
        elif self.too_late is not None:
            ctx.produce(self.too_late, record.value)

    def _produce(self, ctx: Context[Panes], pane: Pane[Any], start: int) -> None:
        pane.revision += 1
        end = Timestamp(pane.end)
        value = self.aggregator.result(pane.accumulator)
        ctx.produce(self.output, Result(ctx.key, Timestamp(start), end, value, pane.revision), timestamp=end)


def _panes_codec(aggregator: Aggregator[Any, Any]) -> Codec[Panes]:
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(dict[int, Pane[aggregator.accumulator]])  # type: ignore[name-defined]
    return Codec(encoder.encode, decoder.decode, dict)
