"""Joins of two keyed streams: by time, as of a time, and with tables (sections 4.2 and 4.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar, Unpack, overload

from millwheel.model.time import MAX_TIMESTAMP, Duration
from millwheel.operators import IntervalJoin, LatestJoin, TableJoin, TemporalJoin
from millwheel.sdk.computation import Computation
from millwheel.sdk.durations import check_duration
from millwheel.streams.checked import checked
from millwheel.streams.declaring import Input, StepOptions, declare_step, outer_sides, refuse_dead_letters, sides
from millwheel.streams.result_types import one_result
from millwheel.streams.stateful import StatefulSteps
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream

__all__ = ["JoinSteps"]

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
_NONE: Final = Duration(0)
_FOREVER: Final = Duration(2 * MAX_TIMESTAMP)
"""Longer than the time between any two timestamps."""
_ONE_TIMER: Final = "has one timer for all records of a key that wait, so a dead letter would be this timer"


class JoinSteps(StatefulSteps[T]):
    """The joins of :class:`KeyedStream`.

    The overloads differ in ``outer``: where a record may be without a partner, the function takes None.
    """

    is_side = True
    """Whether it can be the other side of a join. An ordered stream cannot."""

    @checked(StepOptions)
    def join(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V], U],
        to: type[U] | None = None,
        *,
        keep: Duration | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """Each two records of a key, whenever they come. The result has the larger timestamp.

        Without ``keep``, all records of both sides are kept for ever. For example, each order with all of its parcels::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> shop, now = mw.Topology("shop"), mw.Timestamp(1_700_000_000_000_000)
            >>> orders = shop.source("orders", int).key_by(lambda order: order)
            >>> parcels = shop.source("parcels", tuple[int, str]).key_by(lambda parcel: parcel[0])
            >>> sent = orders.join("sent", parcels, lambda _, parcel: parcel[1], str, keep=mw.hours(24))
            >>> harness = TopologyHarness(shop)
            >>> harness.send("parcels", (7, "books"), timestamp=now)
            >>> harness.send("orders", 7, timestamp=now)
            >>> harness.send("parcels", (7, "pens"), timestamp=now)
            >>> harness.values("sent")
            ['books', 'pens']

        Args:
            name: The name of the computation and of the stream of results.
            other: The other stream, with a key of the same meaning.
            function: Returns the result of a pair.
            to: The type of a result. By default, what the function is annotated to return.
            keep: How far apart the timestamps of a pair may be, in microseconds. A record is kept until the low
                watermark is so far after it. By default for ever. :meth:`join_within` with ``outer`` also gives the
                records without a partner.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``other`` has no key, or is a stream of another topology. Or ``keep`` is not positive, or is
                probably in another unit. Or nothing states the type of a result.
        """
        if keep is not None:
            check_duration("keep", keep)
        span = _FOREVER if keep is None else keep
        return self.join_within(name, other, function, to, before=span, after=span, **options)

    @overload
    def join_within(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V], U],
        to: type[U] | None = ...,
        *,
        before: Duration = ...,
        after: Duration = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        outer: Literal[""] = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_within(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V | None], U],
        to: type[U] | None = ...,
        *,
        before: Duration = ...,
        after: Duration = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        outer: Literal["left"],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_within(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T | None, V], U],
        to: type[U] | None = ...,
        *,
        before: Duration = ...,
        after: Duration = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        outer: Literal["right"],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_within(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T | None, V | None], U],
        to: type[U] | None = ...,
        *,
        before: Duration = ...,
        after: Duration = ...,
        allowed_lateness: Duration = ...,
        too_late: str | None = ...,
        outer: Literal["both"],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @checked(StepOptions)
    def join_within(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[Any, Any], U],
        to: type[U] | None = None,
        *,
        before: Duration = _NONE,
        after: Duration = _NONE,
        allowed_lateness: Duration = _NONE,
        too_late: str | None = None,
        outer: Literal["", "left", "right", "both"] = "",
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """Each two records of a key whose timestamps are close to each other.

        A record at time t meets records of ``other`` from ``t - before`` to ``t + after``. The result has the larger
        timestamp. For example, a payment within an hour after its order::

            orders.key_by("id").join_within("paid", payments.key_by("order"), Paid.of, Paid, after=mw.hours(1))

        Args:
            name: The name of the computation and of the stream of results.
            other: The other stream, with a key of the same meaning.
            function: Returns the result of a pair.
            to: The type of a result. By default, what the function is annotated to return.
            before: How far the other record may be before this one, in microseconds.
            after: How far the other record may be after this one, in microseconds.
            allowed_lateness: How late a record may be and still find all its partners, in microseconds of event time.
                Records are kept so much longer. So what has no partner is produced so much later.
            too_late: The stream of records that are later, find no partner, and could find none but late ones. By
                default they are counted and dropped. A record that ``outer`` produces is none of them.
            outer: The side whose records are also produced without a partner, once none can come. The function then
                gets None for the other one.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: No time is in the interval. Or a time is probably in another unit. Or ``other`` has no key, or
                is a stream of another topology. Or nothing states the type of a result. Or ``too_late`` is the step's
                own name. Or an outer join has ``on_failure=mw.dead_letter()``: all records of a key that wait for a
                partner have one timer.
        """
        keep_left, keep_right = outer_sides(name, outer)
        if outer:
            refuse_dead_letters(name, options, _ONE_TIMER)
        left, right = sides(name, self.input, other)
        types = (left.known_type, right.known_type, one_result(name, function, to))
        join: IntervalJoin[T, V] = IntervalJoin(
            function,
            name,
            types,
            before=before,
            after=after,
            allowed_lateness=allowed_lateness,
            keep_left=keep_left,
            keep_right=keep_right,
            too_late=too_late,
        )
        return self._join(name, join, [left, right], types[2], options)

    @overload
    def join_as_of(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V], U],
        to: type[U] | None = ...,
        *,
        outer: Literal[False] = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_as_of(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V | None], U],
        to: type[U] | None = ...,
        *,
        outer: bool,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @checked(StepOptions)
    def join_as_of(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[Any, Any], U],
        to: type[U] | None = None,
        *,
        outer: bool = False,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """Each record with the newest one of ``other`` up to its timestamp: a trade with the price of its moment.

        The result is produced when the low watermark has passed the record. So it depends on the timestamps alone.

        Args:
            name: The name of the computation and of the stream of results.
            other: The other stream, with a key of the same meaning.
            function: Returns the result of a record and the other one.
            to: The type of a result. By default, what the function is annotated to return.
            outer: Whether a record without another one is produced, too. The function then gets None.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``other`` has no key, or is a stream of another topology. Or nothing states the type of a
                result. Or ``on_failure`` is ``mw.dead_letter()``: all records of a key that wait have one timer.
        """
        refuse_dead_letters(name, options, _ONE_TIMER)
        left, right = sides(name, self.input, other)
        types = (left.known_type, right.known_type, one_result(name, function, to))
        join: TemporalJoin[T, V] = TemporalJoin(function, name, types, keep_left=outer)
        return self._join(name, join, [left, right], types[2], options)

    @overload
    def join_latest(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V], U],
        to: type[U] | None = ...,
        *,
        removes: Callable[[V], bool] | None = ...,
        keep: Duration | None = ...,
        outer: Literal[False] = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_latest(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V | None], U],
        to: type[U] | None = ...,
        *,
        removes: Callable[[V], bool] | None = ...,
        keep: Duration | None = ...,
        outer: bool,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @checked(StepOptions)
    def join_latest(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[Any, Any], U],
        to: type[U] | None = None,
        *,
        outer: bool = False,
        removes: Callable[[V], bool] | None = None,
        keep: Duration | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """Each record with that of ``other`` which arrived last: a join with a table.

        The result is produced at once, with the timestamp of the record. It depends on the order in which the records
        of both sides arrive: :meth:`join_as_of` does not. For example::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> shop = mw.Topology("shop")
            >>> names = shop.source("names", tuple[int, str]).key_by(lambda pair: pair[0])
            >>> sales = shop.source("sales", int).key_by(lambda customer: customer)
            >>> sold = sales.join_latest("sold", names, lambda _, pair: pair[1] if pair else "?", str, outer=True)
            >>> harness, now = TopologyHarness(shop), mw.Timestamp(1_700_000_000_000_000)
            >>> harness.send("sales", 7, timestamp=now)
            >>> harness.send("names", (7, "Ann"), timestamp=now)
            >>> harness.send("sales", 7, timestamp=now)
            >>> harness.values("sold")
            ['?', 'Ann']

        Args:
            name: The name of the computation and of the stream of results.
            other: The other stream, with a key of the same meaning.
            function: Returns the result of a record and the other one.
            to: The type of a result. By default, what the function is annotated to return.
            outer: Whether a record without another one is produced, too. The function then gets None.
            removes: Whether a value of ``other`` removes what is known of its key. By default none does.
            keep: How long a record of ``other`` is kept after its timestamp, in microseconds of event time; a late one
                after the low watermark. By default for ever.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``other`` has no key, or is a stream of another topology. Or ``keep`` is not positive, or is
                probably in another unit. Or nothing states the type of a result.
        """
        left, right = sides(name, self.input, other)
        types = (left.known_type, right.known_type, one_result(name, function, to))
        join: LatestJoin[V] = LatestJoin(function, name, types, keep_left=outer, removes=removes, keep=keep)
        return self._join(name, join, [left, right], types[2], options)

    @overload
    def join_tables(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V], U],
        to: type[U] | None = ...,
        *,
        keep: Duration | None = ...,
        outer: Literal[""] = ...,
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_tables(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T, V | None], U],
        to: type[U] | None = ...,
        *,
        keep: Duration | None = ...,
        outer: Literal["left"],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_tables(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T | None, V], U],
        to: type[U] | None = ...,
        *,
        keep: Duration | None = ...,
        outer: Literal["right"],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def join_tables(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[T | None, V | None], U],
        to: type[U] | None = ...,
        *,
        keep: Duration | None = ...,
        outer: Literal["both"],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @checked(StepOptions)
    def join_tables(
        self,
        name: str,
        other: JoinSteps[V],
        function: Callable[[Any, Any], U],
        to: type[U] | None = None,
        *,
        outer: Literal["", "left", "right", "both"] = "",
        keep: Duration | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """The newest record of this stream with the newest one of ``other``, whenever one of them changes.

        Newest is by timestamp: an older record that arrives later changes nothing. Of two records of the same timestamp
        the one with the larger encoding is newer, as for :meth:`latest` without ``ties``. The result has the larger
        timestamp of both. So the last result of a key does not depend on the order in which records
        arrive. For example::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> shop, now = mw.Topology("shop"), 1_700_000_000_000_000
            >>> prices, pieces = (shop.source(name, int).key_by(mw.everything) for name in ("prices", "pieces"))
            >>> worth = prices.join_tables("worth", pieces, lambda price, number: price * number, int)
            >>> harness = TopologyHarness(shop)
            >>> for second, (name, value) in enumerate([("prices", 5), ("pieces", 3), ("prices", 6)]):
            ...     harness.send(name, value, timestamp=mw.Timestamp(now + second))
            >>> harness.values("worth")
            [15, 18]

        Args:
            name: The name of the computation and of the stream of results.
            other: The other stream, with a key of the same meaning.
            function: Returns the result of a pair. A record that says that its row was deleted is like any other: the
                function decides what it means.
            to: The type of a result. By default, what the function is annotated to return.
            outer: The side whose records have results while the other side has none. The function then gets None for
                the other one.
            keep: How long the newest record of a side is kept after its timestamp, in microseconds of event time; a
                late one after the low watermark. By default for ever.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``other`` has no key, or is a stream of another topology. Or ``outer`` has another value. Or
                ``keep`` is not positive, or is probably in another unit. Or nothing states the type of a result.
        """
        keep_left, keep_right = outer_sides(name, outer)
        left, right = sides(name, self.input, other)
        types = (left.known_type, right.known_type, one_result(name, function, to))
        join: TableJoin[T, V] = TableJoin(function, name, types, keep_left=keep_left, keep_right=keep_right, keep=keep)
        return self._join(name, join, [left, right], types[2], options)

    def _join(
        self, name: str, computation: Computation[Any, Any], inputs: list[Input], to: Any, options: StepOptions
    ) -> Stream[Any]:
        declare_step(name, computation, inputs, {}, options)
        return Stream(self.stream.topology, (Branch(name),), to)
