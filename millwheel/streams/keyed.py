"""Keyed streams: records with a key, and the steps that keep state by key (sections 4.2 and 4.4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, Unpack

from millwheel.agg.reading import Of
from millwheel.operators import COPIES, LIMIT, ROWS, Complete
from millwheel.sdk.options import Late
from millwheel.streams.broadcasting import declare_broadcast
from millwheel.streams.checked import checked
from millwheel.streams.declaring import StepOptions
from millwheel.streams.enriching import CallOptions, declare_calls
from millwheel.streams.joining import JoinSteps
from millwheel.streams.ordered import OrderedStream
from millwheel.streams.result_types import awaited_result, item_result, one_result
from millwheel.streams.sinking import WriteOptions, declare_sink
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream
from millwheel.streams.windowed import WindowedStream
from millwheel.windows.assigners import Assigner, SessionWindows

if TYPE_CHECKING:
    from millwheel.connectors.sink import Sink

__all__ = ["KeyedStream"]

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")


class KeyedStream(JoinSteps[T]):
    """The records of a stream with a key: what :meth:`Stream.key_by` returns.

    A step that keeps state has a name. It is the name of its computation and of its output stream. The state is stored
    under it, so it should stay when the program changes.
    """

    @checked()
    def window(self, windows: Assigner | SessionWindows) -> WindowedStream[T]:
        """The records by window.

        Args:
            windows: From ``windows.tumbling``, ``windows.sliding`` or ``windows.session``.
        """
        return WindowedStream(self.input, windows)

    @checked()
    def ordered_by_time(self, ties: Of = None, *, limit: int = LIMIT) -> OrderedStream[T]:
        """The records of each key in the order of their timestamps, for the step that follows.

        The step gets a record when the low watermark has passed it. This is no computation of its own: the records wait
        in the state of the step. For example::

            bids.key_by("auction").ordered_by_time("number").process("book", Book, {"trades": Trade})

        Args:
            ties: The field, or a function of the value, that decides between records of the same timestamp. Those that
                are still equal come in the order of their encodings.
            limit: The most records of a key that wait. At a record beyond it the hook fails.
        """
        return OrderedStream(self.stream, self.extractor, ties, limit)

    @checked(CallOptions)
    def enrich(
        self,
        name: str,
        function: Callable[[T], Awaitable[U]],
        to: type[U] | None = None,
        **options: Unpack[CallOptions],
    ) -> Stream[U]:
        """The results of calls of a service, one for each record. They have the timestamps of the records.

        The results of each key come in the order in which its records arrived: a call ends before the next one of its
        key begins. :meth:`Stream.enrich` has no order, and an example. A hash divides the keys among ``concurrency``
        numbers, which are the keys of the computation. So a record that fails also blocks other keys, those with the
        same number. ``otherwise``, or ``on_failure=mw.dead_letter()``, bounds how long.

        Args:
            name: The name of the computation and of the stream of results.
            function: An asynchronous function, which returns the result for a value. It may be called again for a value
                after a crash or a failure, so what it does to the service must be idempotent.
            to: The type of a result. By default, what the function is annotated to return.
            options: ``concurrency``: how many calls run at the same time, in all workers together (64). ``timeout``:
                how long one may take, in microseconds (10 seconds). ``retries``: how often it is repeated (0).
                ``backoff``: the wait before the first repetition, in microseconds (0.1 seconds); it doubles up to 30
                seconds. ``otherwise``: a function that returns the result for a value whose calls have all failed.
                Without it the hook fails, and ``on_failure`` decides: by default it is tried again for ever, and
                ``mw.dead_letter()`` gives the record up. The others are those of :meth:`Topology.add`.

        Raises:
            UsageError: An option is out of its range. Or nothing states the type of a result.
        """
        result = awaited_result(name, function, to)
        declare_calls(self.input, name, function, result, options, keyed=True)
        return Stream(self.stream.topology, (Branch(name),), result)

    @checked(WriteOptions)
    def to(self, name: str, sink: Sink[T], **options: Unpack[WriteOptions]) -> None:
        """Write the records to a sink, as :meth:`Stream.to`. The records of each key keep their order.

        Args:
            name: The name of the sink. What was written is known by it, so it should stay when the program changes.
            sink: Where the records go, such as :func:`millwheel.connectors.database`.
            options: As for :meth:`Stream.to`. With several ``shards``, the records of a key go to the same one.

        Raises:
            UsageError: It is no sink, its name is too long, or an option is not positive. Or nothing states the type of
                the records.
        """
        declare_sink(self.input, name, sink, options, ordered=True)

    @checked(StepOptions)
    def complete(
        self,
        name: str,
        function: Callable[[list[T]], Iterable[U]],
        to: type[U] | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """The results of all records of a key and timestamp, when the low watermark has passed them.

        The results of windows have the window's end as timestamp. So this follows a window where the results of all
        keys are needed, such as the auction with the most bids::

            counts.key_by("start").complete("hot", lambda group: [max(group, key=lambda one: one.value)], Result[int])

        Args:
            name: The name of the computation and of the stream of results.
            function: Returns the results of a group. The records are sorted by their encodings.
            to: The type of one result. By default, what the function is annotated to return a list of.
            options: As for :meth:`Topology.add`. By default late records are dropped.

        Raises:
            UsageError: Nothing states the type of a result.
        """
        options.setdefault("late", Late.DROP)
        result = item_result(name, function, to)
        return self.step(name, Complete(function, name, self.input.known_type, result), result, options)

    @checked(StepOptions)
    def join_broadcast(
        self,
        name: str,
        table: KeyedStream[V],
        function: Callable[[T, Mapping[str, V]], U],
        to: type[U] | None = None,
        *,
        as_of: bool = False,
        removes: Callable[[V], bool] | None = None,
        copies: int = COPIES,
        limit: int = ROWS,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """Each record with a complete small table. The records of a key keep their order, and meet one copy of it.

        So a record never meets an older table than an earlier record of its key. The key has no other meaning:
        :meth:`Stream.join_broadcast` needs none. It has the example, the arguments and the errors.
        """
        result = one_result(name, function, to)
        declare_broadcast(
            self.input,
            table,
            name,
            function,
            result,
            as_of=as_of,
            removes=removes,
            copies=copies,
            limit=limit,
            options=options,
            keyed=True,
        )
        return Stream(self.stream.topology, (Branch(name),), result)
