"""Windowed streams: records with a key and windows, and what is computed of each window."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_type_hints, overload

from millwheel.agg import Aggregator, several
from millwheel.model.time import Duration
from millwheel.sdk.errors import UsageError
from millwheel.sdk.plan import is_known
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.rows import row_of
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream
from millwheel.windows.assigners import Assigner, SessionWindows
from millwheel.windows.computation import Aggregate
from millwheel.windows.result import Result
from millwheel.windows.sessions import SessionAggregate

__all__ = ["WindowedStream"]

T = TypeVar("T")
R = TypeVar("R")
U = TypeVar("U")
_NONE = Duration(0)


class WindowedStream(Generic[T]):
    """The records of a keyed stream by window: what :meth:`KeyedStream.window` returns."""

    def __init__(self, stream: Stream[T], given: Input, windows: Assigner | SessionWindows) -> None:
        self.stream = stream
        self.input = given
        self.windows = windows

    @overload
    def aggregate(
        self,
        name: str,
        aggregator: Aggregator[Any, R],
        /,
        *,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        options: StepOptions | None = ...,
    ) -> Stream[Result[R]]: ...
    @overload
    def aggregate(
        self,
        name: str,
        into: type[U],
        /,
        *,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        options: StepOptions | None = ...,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[U]: ...
    @overload
    def aggregate(
        self,
        name: str,
        /,
        *,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        options: StepOptions | None = ...,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[Any]: ...
    def aggregate(
        self,
        name: str,
        result: Any = None,
        /,
        *,
        allowed_lateness: Duration = _NONE,
        too_late: str | None = None,
        options: StepOptions | None = None,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[Any]:
        """One result for each key and window, when the low watermark has passed the window's end.

        With one aggregator, results are :class:`windows.Result`. With several by name, they are of a class of the
        user's, whose fields are filled by name: those of the aggregates, those that are the key, and ``key``,
        ``start``, ``end`` and ``revision``. Without a class, one with all of these is generated. For example::

            stats = bids.key_by("auction").window(windows.tumbling(MINUTE)).aggregate(
                "stats", Stats, bids=agg.count(), highest=agg.max("price")
            )

        Args:
            name: The name of the computation and of the stream of results.
            result: One aggregator, or the class of the results.
            allowed_lateness: How long a window is kept for late records after its end, in microseconds of event time.
                Each of them produces a corrected result.
            too_late: The stream of records for which no window is kept. By default they are dropped.
            options: The options of the computation.
            aggregates: The aggregates by name.

        Raises:
            UsageError: There is no aggregate. Or an aggregate reads a field that the records do not have. Or nothing
                fills a field of the class. Or session windows are given with ``allowed_lateness``.
        """
        given, row = self.input, None
        record_type = given.record_type if is_known(given.record_type) else Any
        if isinstance(result, Aggregator):
            aggregator = result.bind(record_type)
        elif aggregates:
            aggregator = several(aggregates).bind(record_type)
            row = row_of(result, get_type_hints(aggregator.result_type), given.extractor, record_type)
        else:
            raise UsageError(f"aggregate({name!r}) has no aggregate: add one, such as agg.count() or n=agg.count()")
        step: Aggregate[Any] | SessionAggregate[Any]
        if isinstance(self.windows, SessionWindows):
            if allowed_lateness:
                raise UsageError("session windows have no allowed_lateness: a late record may join two sessions")
            step = SessionAggregate(self.windows, aggregator, output=name, too_late=too_late, row=row)
        else:
            step = Aggregate(
                self.windows, aggregator, output=name, allowed_lateness=allowed_lateness, too_late=too_late, row=row
            )
        declare_step(self.stream.topology, name, step, [given], {}, options or {})
        return Stream(self.stream.topology, (Branch(name),), step.outputs[name])
