"""Aggregation over sessions: windows whose bounds depend on the records, and which merge."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.time import Timestamp
from millwheel.sdk.codecs import Codec
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.model import Record, Timer
from millwheel.windows.aggregates import Aggregator
from millwheel.windows.assigners import SessionWindows
from millwheel.windows.result import Result

__all__ = ["SessionAggregate"]

Sessions = list[Any]
"""[start, end, accumulator] by increasing start; no two overlap or touch."""


class SessionAggregate(Computation[Any, Sessions]):
    """One result per key and session, produced when the low watermark has passed its end.

    A record belongs to the session that its timestamp falls into, or opens one from its timestamp to ``gap``
    later; sessions that a record joins become one. A late record whose session would have ended is
    produced, as it came, to ``too_late`` if that stream is named, else dropped.
    """

    def __init__(
        self,
        windows: SessionWindows,
        aggregator: Aggregator[Any, Any],
        *,
        output: str = "sessions",
        too_late: str | None = None,
    ) -> None:
        self.gap = windows.gap
        self.aggregator = aggregator
        self.output = output
        self.too_late = too_late
        self.state_codec = _sessions_codec(aggregator)

    def process_record(self, ctx: Context[Sessions], record: Record[Any]) -> None:
        """Put the record into its session, merging those that it joins."""
        start, end = record.timestamp, record.timestamp + self.gap
        sessions = ctx.state
        joined = [one for one in sessions if one[0] < end and start < one[1]]
        if not joined and end <= ctx.watermark:
            if not sessions:
                del ctx.state
            if self.too_late is not None:
                ctx.produce(self.too_late, record.value)
            return
        accumulator = self.aggregator.new()
        for one in joined:
            accumulator = self.aggregator.merge(accumulator, one[2])
            ctx.cancel_timer(str(one[0]))
            sessions.remove(one)
        first = min([start, *(one[0] for one in joined)])
        last = max([end, *(one[1] for one in joined)])
        sessions.append([first, last, self.aggregator.add(accumulator, record)])
        sessions.sort(key=lambda one: one[0])
        ctx.set_timer(Timestamp(last), str(first))

    def process_timer(self, ctx: Context[Sessions], timer: Timer) -> None:
        """The low watermark has passed a session's end."""
        start = int(timer.tag)
        sessions = ctx.state
        ended = next(one for one in sessions if one[0] == start)
        sessions.remove(ended)
        value = self.aggregator.result(ended[2])
        result = Result(ctx.key, Timestamp(start), Timestamp(ended[1]), value)
        ctx.produce(self.output, result, timestamp=Timestamp(ended[1]))
        if not sessions:
            del ctx.state


def _sessions_codec(aggregator: Aggregator[Any, Any]) -> Codec[Sessions]:
    encoder = msgspec.msgpack.Encoder()
    decoder = msgspec.msgpack.Decoder(list[tuple[int, int, aggregator.accumulator]])  # type: ignore[name-defined]

    def decode(encoded: bytes) -> Sessions:
        return [list(one) for one in decoder.decode(encoded)]

    return Codec(encoder.encode, decode, list)
