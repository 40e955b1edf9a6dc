"""Windowed streams: records with a key and windows, and what is computed of each window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack, overload

from millwheel.agg import Aggregator
from millwheel.model.time import Duration
from millwheel.operators import CoGroup, GroupInput, WindowJoin
from millwheel.sdk.errors import UsageError
from millwheel.streams.checked import checked
from millwheel.streams.declaring import Input, StepOptions, declare_step, other_side, outer_sides, sides
from millwheel.streams.joining import JoinSteps
from millwheel.streams.missing_steps import MissingSteps
from millwheel.streams.result_types import item_result, one_result
from millwheel.streams.rows import aggregates_by_name, note_objection
from millwheel.streams.spread import declare_phases
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream
from millwheel.windows.assigners import Assigner, SessionWindows
from millwheel.windows.computation import Aggregate
from millwheel.windows.early import Early
from millwheel.windows.result import Result
from millwheel.windows.sessions import SessionAggregate

__all__ = ["WindowedStream"]

T = TypeVar("T")
R = TypeVar("R")
U = TypeVar("U")
V = TypeVar("V")
W = TypeVar("W")
_NO_LATENESS = Duration(0)


class WindowedStream(MissingSteps, Generic[T]):
    """The records of a keyed stream by window: what :meth:`KeyedStream.window` returns."""

    def __init__(self, given: Input, windows: Assigner | SessionWindows) -> None:
        self.input = given
        self.windows = windows

    @overload
    def aggregate(
        self,
        name: str,
        aggregator: Aggregator[Any, R],
        /,
        *,
        early: Early | None = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        spread: int = ...,
        options: StepOptions | None = ...,
    ) -> Stream[Result[R]]: ...
    @overload
    def aggregate(
        self,
        name: str,
        into: type[U],
        /,
        *,
        early: Early | None = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        spread: int = ...,
        options: StepOptions | None = ...,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[U]: ...
    @overload
    def aggregate(
        self,
        name: str,
        /,
        *,
        early: Early | None = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        spread: int = ...,
        options: StepOptions | None = ...,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[Any]: ...
    @checked()
    def aggregate(
        self,
        name: str,
        result: Any = None,
        /,
        *,
        early: Early | None = None,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
        spread: int = 1,
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
            early: When results are produced before a window's end: ``windows.every(mw.seconds(10))`` of processing
                time, or ``windows.each_change()``. By default there are none. Results accumulate: each has all records
                so far, and the next ``revision``.
            allowed_lateness: How long a window is kept for late records after its end, in microseconds of event time.
                Each of them produces a corrected result. That of a session replaces those of all sessions within it.
            too_late: The stream of records for which no window is kept. By default they are dropped.
            spread: Over how many keys the records of each key are spread by a hash of their values, where one key has
                too many for one machine. Equal values stay together, so the records must differ. Their results are
                merged by a second computation. The first one is called ``NAME-partial``. Each of both waits for the
                period of ``early``. Sessions have their results up to a sixteenth of their gap later in event time.
            options: The options of the computation.
            aggregates: The aggregates by name.

        Raises:
            UsageError: There is no aggregate, or one without a name and also others. Or an aggregate reads a field that
                the records do not have. Or nothing fills a field of the class. Or ``spread`` is not positive, or each
                change has a result.
        """
        given, row = self.input, None
        if isinstance(result, Aggregator):
            if aggregates:
                raise UsageError(
                    f"aggregate({name!r}) gets one aggregator and also {', '.join(aggregates)}: give each aggregate by "
                    "a name, such as n=agg.count(), and options of the computation as options={'late': mw.Late.DROP}"
                )
            aggregator = result.bind(given.known_type)
        elif aggregates:
            aggregator, row = aggregates_by_name(name, result, aggregates, given)
        else:
            raise UsageError(f"aggregate({name!r}) has no aggregate: add one, such as agg.count() or n=agg.count()")
        if spread != 1:
            merge = declare_phases(
                given,
                name,
                self.windows,
                aggregator,
                row,
                spread,
                options or {},
                early=early,
                allowed_lateness=allowed_lateness,
                too_late=too_late,
            )
            note_objection(name, aggregator, given)
            return Stream(given.topology, (Branch(name),), merge.outputs[name])
        kind: Any = SessionAggregate if isinstance(self.windows, SessionWindows) else Aggregate
        step: Aggregate[Any] | SessionAggregate[Any] = kind(
            self.windows,
            aggregator,
            output=name,
            early=early,
            allowed_lateness=allowed_lateness,
            too_late=too_late,
            row=row,
        )
        declare_step(name, step, [given], {}, options or {})
        note_objection(name, aggregator, given)
        return Stream(given.topology, (Branch(name),), step.outputs[name])

    @overload
    def join(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V], U],
        to: type[U] | None = ...,
        *,
        outer: Literal[""] = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V | None], U],
        to: type[U] | None = ...,
        *,
        outer: Literal["left"],
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T | None, V], U],
        to: type[U] | None = ...,
        *,
        outer: Literal["right"],
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T | None, V | None], U],
        to: type[U] | None = ...,
        *,
        outer: Literal["both"],
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @checked(StepOptions)
    def join(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[Any, Any], U],
        to: type[U] | None = None,
        *,
        outer: Literal["", "left", "right", "both"] = "",
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """Each two records of a key and window, when the low watermark has passed the window's end. For example::

            new = people.key_by("id").window(windows.tumbling(MINUTE))
            new.join("sellers", auctions.key_by("seller"), Seller.of, Seller)

        Args:
            name: The name of the computation and of the stream of results.
            other: The other stream, with a key of the same meaning.
            function: Returns the result of a pair. In an outer join, the missing one is None.
            to: The type of a result. By default, what the function is annotated to return.
            outer: The side whose records are also produced without a partner: ``"left"``, ``"right"`` or ``"both"``.
            allowed_lateness: How long a window is kept for late records after its end, in microseconds of event time.
                Each of them then makes the pairs that were missing. What has no partner is produced so much later. The
                function does not change its arguments then, because the step keeps them.
            too_late: The stream of records for which no window is kept. By default they are dropped.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: The windows are sessions. Or ``outer`` has another value. Or ``other`` has no key, or is a
                stream of another topology. Or nothing states the type of a result. Or ``allowed_lateness`` is negative,
                or probably in another unit. Or ``too_late`` is the step's own name.
        """
        result = one_result(name, function, to)
        keep_left, keep_right = outer_sides(name, outer)
        inputs = sides(name, self.input, other)
        step: WindowJoin[Any] = WindowJoin(
            self.windows,
            function,
            name,
            _group_inputs(inputs),
            result,
            keep_left=keep_left,
            keep_right=keep_right,
            allowed_lateness=allowed_lateness,
            too_late=too_late,
        )
        return self._grouped(step, inputs, options)

    @overload
    def cogroup(
        self,
        name: str,
        others: JoinSteps[V],
        function: Callable[[list[T], list[V]], Iterable[U]],
        to: type[U] | None = ...,
        *,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def cogroup(
        self,
        name: str,
        others: tuple[JoinSteps[V], JoinSteps[W]],
        function: Callable[[list[T], list[V], list[W]], Iterable[U]],
        to: type[U] | None = ...,
        *,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def cogroup(
        self,
        name: str,
        others: Sequence[JoinSteps[Any]],
        function: Callable[..., Iterable[U]],
        to: type[U] | None = ...,
        *,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @checked(StepOptions)
    def cogroup(
        self,
        name: str,
        others: JoinSteps[Any] | Sequence[JoinSteps[Any]],
        function: Callable[..., Iterable[U]],
        to: type[U] | None = None,
        *,
        allowed_lateness: Duration = _NO_LATENESS,
        too_late: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """The results of all records of a key and window, from this stream and others.

        They are produced when the low watermark has passed the window's end, and have it as timestamp. For example,
        what each customer has ordered and sent back in an hour::

            >>> import millwheel as mw
            >>> from millwheel import windows
            >>> from millwheel.testing import TopologyHarness
            >>> shop, noon = mw.Topology("shop"), 1_700_000_000_000_000
            >>> orders, returns = (shop.source(name, int).key_by(mw.everything) for name in ("orders", "returns"))
            >>> def balance(ordered: list[int], sent_back: list[int]) -> list[int]:
            ...     return [sum(ordered) - sum(sent_back)]
            >>> hours = orders.window(windows.tumbling(mw.hours(1)))
            >>> balances = hours.cogroup("balances", returns, balance)
            >>> harness = TopologyHarness(shop)
            >>> for name, cents in [("orders", 500), ("returns", 200), ("orders", 100)]:
            ...     harness.send(name, cents, timestamp=mw.Timestamp(noon))
            >>> harness.advance(mw.Timestamp(noon + mw.hours(1)))
            >>> harness.values("balances")
            [400]

        Args:
            name: The name of the computation and of the stream of results.
            others: The other stream, or several, with keys of the same meaning.
            function: Takes one list of values for each stream, in this order, and returns the results. It is called if
                at least one list is not empty. Each list is sorted by the encodings.
            to: The type of one result. By default, what the function is annotated to return a list of.
            allowed_lateness: How long a window is kept for late records after its end, in microseconds of event time.
                For each of them, the function is called with and without it. What only the first call returns is
                produced. The function does not change the records then, because the step keeps them.
            too_late: The stream of records for which no window is kept. By default they are dropped.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: The windows are sessions. Or another stream has no key, or is of another topology. Or nothing
                states the type of a result. Or ``allowed_lateness`` is negative, or probably in another unit. Or
                ``too_late`` is the step's own name.
        """
        result = item_result(name, function, to)
        given = others if isinstance(others, list | tuple) else [others]
        every = [self.input, *(other_side(name, one) for one in given)]
        if any(one.topology is not self.input.topology for one in every):
            raise UsageError("cogroup takes streams of one topology: it reads another one's stream by external()")
        inputs = [one._replace(port=f"input-{place}") for place, one in enumerate(every)]
        step: CoGroup[Any] = CoGroup(
            self.windows,
            function,
            name,
            _group_inputs(inputs),
            result,
            allowed_lateness=allowed_lateness,
            too_late=too_late,
        )
        return self._grouped(step, inputs, options)

    def _grouped(self, step: CoGroup[Any], inputs: Sequence[Input], options: StepOptions) -> Stream[Any]:
        declare_step(step.output, step, inputs, {}, options)
        return Stream(self.input.topology, (Branch(step.output),), step.result)


def _group_inputs(inputs: Sequence[Input]) -> list[GroupInput]:
    """The inputs of a group. The second list of one stream has a number after the stream's name."""
    streams = [one.branches[0].stream for one in inputs]
    before = [streams[:place].count(stream) for place, stream in enumerate(streams)]
    return [
        GroupInput(one.port, one.known_type, f"{stream} {count + 1}" if count else stream)
        for one, stream, count in zip(inputs, streams, before, strict=True)
    ]
