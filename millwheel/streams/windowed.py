"""Windowed streams: records with a key and windows, and what is computed of each window."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, Unpack

from millwheel.model.time import Duration
from millwheel.sdk.errors import UsageError
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream
from millwheel.windows.aggregates import Aggregator
from millwheel.windows.assigners import Assigner, SessionWindows
from millwheel.windows.computation import Aggregate
from millwheel.windows.result import Result
from millwheel.windows.sessions import SessionAggregate

__all__ = ["WindowedStream"]

T = TypeVar("T")
R = TypeVar("R")
_NONE = Duration(0)


class WindowedStream(Generic[T]):
    """The records of a keyed stream by window: what :meth:`KeyedStream.window` returns."""

    def __init__(self, stream: Stream[T], given: Input, windows: Assigner | SessionWindows) -> None:
        self.stream = stream
        self.input = given
        self.windows = windows

    def aggregate(
        self,
        name: str,
        aggregator: Aggregator[Any, R],
        *,
        allowed_lateness: Duration = _NONE,
        too_late: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[Result[R]]:
        """One result for each key and window, when the low watermark has passed the window's end.

        Args:
            name: The name of the computation and of the stream of results.
            aggregator: Computes one value from the records of a window.
            allowed_lateness: How long a window is kept for late records after its end, in microseconds of event time.
                Each of them produces a corrected result.
            too_late: The stream of records for which no window is kept. By default they are dropped.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: As by ``windows.Aggregate``. Or session windows are given with ``allowed_lateness``.
        """
        step: Aggregate[Any] | SessionAggregate[Any]
        if isinstance(self.windows, SessionWindows):
            if allowed_lateness:
                raise UsageError("session windows have no allowed_lateness: a late record may join two sessions")
            step = SessionAggregate(self.windows, aggregator, output=name, too_late=too_late)
        else:
            step = Aggregate(
                self.windows, aggregator, output=name, allowed_lateness=allowed_lateness, too_late=too_late
            )
        declare_step(self.stream.topology, name, step, [self.input], {}, options)
        return Stream(self.stream.topology, (Branch(name),), step.outputs[name])
