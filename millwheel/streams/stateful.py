"""Steps that keep state by key, and read one stream (sections 4.2 and 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, Unpack, overload

from millwheel.agg import Aggregator
from millwheel.agg.reading import Of
from millwheel.model.time import Duration, TimeDomain
from millwheel.operators import (
    Change,
    Changes,
    ClockTimeout,
    Deduplicate,
    ExpiringUpdate,
    Latest,
    RunningAggregate,
    Throttle,
    Timeout,
    Until,
    Update,
)
from millwheel.sdk.computation import Computation
from millwheel.sdk.keys import KeyExtractor
from millwheel.sdk.typeinfo import first_type
from millwheel.streams.checked import checked
from millwheel.streams.counted import CountWindowedStream
from millwheel.streams.declaring import Input, StepOptions, declare_step
from millwheel.streams.missing_steps import MissingSteps
from millwheel.streams.result_types import one_result, state_of_initial, updated_result
from millwheel.streams.rows import aggregates_by_name, note_objection
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream

__all__ = ["StatefulSteps"]

T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")


class StatefulSteps(MissingSteps, Generic[T]):
    """What :class:`KeyedStream` and :class:`OrderedStream` have in common.

    A step that keeps state has a name. It is the name of its computation and of its output stream. The state is stored
    under it, so it should stay when the program changes.
    """

    def __init__(self, stream: Stream[T], extractor: KeyExtractor) -> None:
        self.stream = stream
        self.extractor = extractor

    @property
    def input(self) -> Input:
        """The stream as a step's input."""
        return Input(self.stream.topology, self.stream.branches, self.stream.record_type, self.extractor)

    @overload
    def process(
        self,
        name: str,
        computation: Computation[T, Any] | type[Computation[T, Any]],
        outputs: Mapping[str, type[U]],
        **options: Unpack[StepOptions],
    ) -> Stream[U]: ...
    @overload
    def process(
        self,
        name: str,
        computation: Computation[T, Any] | type[Computation[T, Any]],
        outputs: Mapping[str, Any],
        **options: Unpack[StepOptions],
    ) -> Stream[Any]: ...
    @checked(StepOptions)
    def process(
        self,
        name: str,
        computation: Computation[T, Any] | type[Computation[T, Any]],
        outputs: Mapping[str, Any],
        **options: Unpack[StepOptions],
    ) -> Stream[Any]:
        """A computation of the user's own.

        Args:
            name: The computation's name.
            computation: Its class, or an instance if it has parameters.
            outputs: The streams that it produces to, with their types.
            options: As for :meth:`Topology.add`.

        Returns:
            The first of ``outputs``. :meth:`Topology.stream` returns the others.
        """
        topology = self.stream.topology
        self.declare(name, computation, outputs, options)
        first = next(iter(outputs), name)
        return Stream(topology, (Branch(first),), outputs.get(first))

    @overload
    def aggregate(
        self, name: str, into: type[U], /, *, options: StepOptions | None = ..., **aggregates: Aggregator[Any, Any]
    ) -> Stream[U]: ...
    @overload
    def aggregate(
        self, name: str, /, *, options: StepOptions | None = ..., **aggregates: Aggregator[Any, Any]
    ) -> Stream[Any]: ...
    @checked()
    def aggregate(
        self,
        name: str,
        into: Any = None,
        /,
        *,
        options: StepOptions | None = None,
        **aggregates: Aggregator[Any, Any],
    ) -> Stream[Any]:
        """The aggregates of all records of a key so far, after each record that changes them.

        A result has the timestamp of the record. Its fields are filled by their names: from the aggregates, from the
        fields that are the key, and from ``key``. For example::

            bids.key_by("auction").aggregate("auctions", Auction, bids=agg.count(), highest=agg.max("price"))

        Args:
            name: The name of the computation and of the stream of results.
            into: The class of the results. By default one with all of these fields is generated.
            options: The options of the computation.
            aggregates: The aggregates by name.

        Raises:
            UsageError: There is no aggregate. Or an aggregate reads a field that the records do not have. Or nothing
                fills a field of the class.
        """
        aggregator, row = aggregates_by_name(name, into, aggregates, self.input, windowed=False)
        step: RunningAggregate[Any] = RunningAggregate(aggregator, name, row)
        found = self.step(name, step, row.type, options or {})
        note_objection(name, aggregator, self.input)
        return found

    @checked(StepOptions)
    def update(
        self,
        name: str,
        initial: S,
        function: Callable[[S, T], tuple[S | None, Iterable[U]]],
        to: type[U] | None = None,
        *,
        state: Any = None,
        keep: Duration | None = None,
        domain: TimeDomain = TimeDomain.EVENT_TIME,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """A state for each key: ``function`` gets it with each record, and returns the next one with the results.

        The function is called in the order in which records arrive. After :meth:`KeyedStream.ordered_by_time` it is
        called in the order of their timestamps. For example, what each bid adds to the highest price::

            >>> import msgspec
            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> class Bid(msgspec.Struct):
            ...     auction: int
            ...     price: int
            >>> def rise(highest: int, bid: Bid) -> tuple[int, list[int]]:
            ...     more = bid.price - highest
            ...     return (bid.price, [more]) if more > 0 else (highest, [])
            >>> q = mw.Topology("q")
            >>> rises = q.source("bids", Bid).key_by("auction").update("rises", 0, rise, int)
            >>> harness = TopologyHarness(q)
            >>> for price in (5, 3, 8):
            ...     harness.send("bids", Bid(1, price), timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> harness.values("rises")
            [5, 3]

        Args:
            name: The name of the computation and of the stream of results.
            initial: The state of a key without records. Each key gets a copy of its own.
            function: Takes the state and a value. Returns the next state and the results, which have the timestamp of
                the record. It may change the state in place. The state None forgets the key.
            to: The type of one result. By default, what the function is annotated to return: int for
                ``tuple[State, list[int]]``.
            state: The type of the states. By default what the first parameter of ``function`` is annotated with, else
                the class of ``initial``.
            keep: How long a key is known after its newest record, in microseconds. By default for ever.
            domain: Whether ``keep`` is an event time, after the record's timestamp, or a processing time, after its
                arrival.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: Nothing states the type of a result, or of the states: ``initial`` is None and ``function`` is
                not annotated. Or ``keep`` is not positive, or is probably in another unit.
        """
        result = updated_result(name, function, to)
        kept = state or first_type(function) or state_of_initial(name, function, initial)
        update = Update(initial, function, name, kept, result)
        if keep is None:
            return self.step(name, update, result, options)
        return self.step(name, ExpiringUpdate(update, kept, keep, domain), result, options)

    @checked(StepOptions)
    def deduplicate(self, name: str, within: Duration | None = None, **options: Unpack[StepOptions]) -> Stream[T]:
        """The first record of each key that arrives, until it is forgotten.

        Without ``within`` it is never forgotten. Then each key that has ever come keeps a few bytes of state for ever.
        That suits keys of a bounded number, such as those of users, and not the ids of records. For example::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> shop = mw.Topology("shop")
            >>> customers = shop.source("customers", str).key_by(lambda name: name).deduplicate("new-customers")
            >>> harness = TopologyHarness(shop)
            >>> for day, name in enumerate(["Ann", "Bob", "Ann"]):
            ...     harness.send("customers", name, timestamp=mw.Timestamp(1_700_000_000_000_000 + day))
            >>> harness.values("new-customers")
            ['Ann', 'Bob']

        Args:
            name: The name of the computation and of the stream of results.
            within: How long after its timestamp a record is remembered, in microseconds of event time. By default for
                ever.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``within`` is not positive, or is probably in another unit.
        """
        return self.step(name, Deduplicate(name, within), self.stream.record_type, options)

    @checked(StepOptions)
    def until(
        self,
        name: str,
        condition: Callable[[T], object],
        *,
        keep: Duration | None = None,
        rest: str | None = None,
        **options: Unpack[StepOptions],
    ) -> Stream[T]:
        """The records of each key up to the first that meets a condition, and this one. Those after it do not pass.

        The first is the one that arrives first; after :meth:`KeyedStream.ordered_by_time` that of the smallest
        timestamp. For example, the answers of a user up to the right one::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> quiz = mw.Topology("quiz")
            >>> answers = quiz.source("answers", tuple[str, int]).key_by(lambda answer: answer[0])
            >>> tried = answers.until("tried", lambda answer: answer[1] == 42, rest="more")
            >>> harness, noon = TopologyHarness(quiz), mw.Timestamp(1_700_000_000_000_000)
            >>> for answer in [("ann", 7), ("bob", 42), ("ann", 42), ("bob", 3)]:
            ...     harness.send("answers", answer, timestamp=noon)
            >>> harness.values("tried"), harness.values("more")
            ([('ann', 7), ('bob', 42), ('ann', 42)], [('bob', 3)])

        Args:
            name: The name of the computation and of the stream of results.
            condition: Whether a value is the last one of its key.
            keep: How long a key has ended after its last record, in microseconds of event time. Then it begins again.
                By default for ever: a few bytes of state for each key that has ended.
            rest: The stream of the records after the last one. By default they are dropped.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``keep`` is not positive, or is probably in another unit. Or ``rest`` is the name of the step.
        """
        return self.step(name, Until(condition, name, keep, rest), self.stream.record_type, options)

    @checked(StepOptions)
    def throttle(
        self, name: str, count: int, per: Duration, *, excess: str | None = None, **options: Unpack[StepOptions]
    ) -> Stream[T]:
        """At most ``count`` records of each key in any time of the length ``per``. The others are dropped.

        A record passes if there is room when it arrives. So the choice depends on the order of arrival, and after
        :meth:`KeyedStream.ordered_by_time` on the timestamps alone. For example, one alert of a machine in an hour::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> plant, noon = mw.Topology("plant"), 1_700_000_000_000_000
            >>> alerts = plant.source("alerts", str).key_by(lambda machine: machine)
            >>> calls = alerts.throttle("calls", 1, mw.hours(1), excess="repeated")
            >>> harness = TopologyHarness(plant)
            >>> for minute, machine in [(0, "a"), (10, "b"), (59, "a"), (60, "a")]:
            ...     harness.send("alerts", machine, timestamp=mw.Timestamp(noon + mw.minutes(minute)))
            >>> harness.values("calls"), harness.values("repeated")
            (['a', 'b', 'a'], ['a'])

        Nothing is delayed: what must wait would be kept, and a source that is faster for long would fill the state. A
        source is held back by ``allowed_skew``, and calls of a service by the ``concurrency`` of :meth:`enrich`.

        Args:
            name: The name of the computation and of the stream of results.
            count: How many records pass, from 1 to 1,000.
            per: In which time, in microseconds of event time.
            excess: The stream of the records that do not pass.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``count`` is out of its range. Or ``per`` is not positive, or is probably in another unit. Or
                ``excess`` is the name of the step.
        """
        return self.step(name, Throttle(count, per, name, excess), self.stream.record_type, options)

    @checked(StepOptions)
    def latest(
        self, name: str, *, keep: Duration | None = None, ties: Of = None, **options: Unpack[StepOptions]
    ) -> Stream[T]:
        """The newest record of each key by timestamp, whenever there is a newer one.

        An older record that arrives later is dropped. The last result of a key does not depend on the order in which
        records arrive. So the order cannot decide between records of the same timestamp, and ``ties`` should: without
        it a correction may be dropped that has the timestamp of what it corrects. For example::

            >>> import msgspec
            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> class Score(msgspec.Struct):
            ...     player: str
            ...     points: int
            ...     version: int
            >>> game, noon = mw.Topology("game"), mw.Timestamp(1_700_000_000_000_000)
            >>> newest = game.source("scores", Score).key_by("player").latest("newest", ties="version")
            >>> harness = TopologyHarness(game)
            >>> for points, version in [(30, 1), (10, 2)]:
            ...     harness.send("scores", Score("ann", points, version), timestamp=noon)
            >>> [score.points for score in harness.values("newest")]
            [30, 10]

        Args:
            name: The name of the computation and of the stream of results.
            keep: How long a key is known after its newest record, in microseconds of event time. By default for ever.
            ties: The field, or a function of the value, that decides between records of the same timestamp: the larger
                one is newer. What is still equal is decided by the larger encoding.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``keep`` is not positive, or is probably in another unit. Or the records have no field ``ties``.
        """
        latest: Latest[T] = Latest(name, self.input.known_type, keep, ties)
        return self.step(name, latest, self.stream.record_type, options)

    @checked(StepOptions)
    def changes(self, name: str, *, keep: Duration | None = None, **options: Unpack[StepOptions]) -> Stream[Change[T]]:
        """What each record changes: the last record of its key with the weight -1, and itself with the weight 1.

        The first record of a key has nothing to take back, and a record that is equal to the last one changes nothing.
        So a sum of weights is a count of what holds now. For example, the orders of each city, and what they cost::

            >>> import msgspec
            >>> import millwheel as mw
            >>> from millwheel import agg
            >>> from millwheel.testing import TopologyHarness
            >>> class Order(msgspec.Struct):
            ...     id: int
            ...     city: str
            ...     cents: int
            >>> shop = mw.Topology("shop")
            >>> moves = shop.source("orders", Order).key_by("id").changes("moves").key_by("value.city")
            >>> cents = agg.sum(lambda change: change.weight * change.value.cents)
            >>> cities = moves.aggregate("cities", orders=agg.sum("weight"), cents=cents)
            >>> harness = TopologyHarness(shop)
            >>> for city in ("Ghent", "Bruges"):
            ...     harness.send("orders", Order(7, city, 300), timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> [(one.city, one.orders, one.cents) for one in harness.values("cities")]
            [('Ghent', 1, 300), ('Ghent', 0, 0), ('Bruges', 1, 300)]

        The last record is the one that arrived last. After :meth:`latest` it is the newest, in any order of arrival.
        Both changes have the timestamp of the record that causes them. So a window has what changed in its time. Where
        both have the same key, the retraction comes first. Take sums: to other aggregates, such as ``agg.count()`` and
        ``agg.max``, a retraction is one more record.

        Args:
            name: The name of the computation and of the stream of changes.
            keep: How long a key is known after its newest record, in microseconds of event time. Then it is forgotten,
                and not taken back: its next record is a first one. By default for ever.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``keep`` is not positive, or is probably in another unit.
        """
        changes: Changes[T] = Changes(name, self.input.known_type, keep)
        return self.step(name, changes, changes.result, options)

    @checked(StepOptions)
    def timeout(
        self,
        name: str,
        after: Duration,
        function: Callable[[T], U],
        to: type[U] | None = None,
        *,
        domain: TimeDomain = TimeDomain.EVENT_TIME,
        **options: Unpack[StepOptions],
    ) -> Stream[U]:
        """A result when a key has been silent for a time.

        In event time, this is when no record of the key is less than ``after`` later than its last one, and the low
        watermark shows that none can come. The result has this time. It does not depend on the order of arrival. A late
        record whose own time has run out is dropped. For example::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> sensors = mw.Topology("sensors")
            >>> beats = sensors.source("beats", str).key_by(lambda sensor: sensor)
            >>> silent = beats.timeout("silent", mw.seconds(10), lambda sensor: f"{sensor} is silent", str)
            >>> harness, noon = TopologyHarness(sensors), 1_700_000_000_000_000
            >>> for second, sensor in [(0, "a"), (4, "b"), (9, "a")]:
            ...     harness.send("beats", sensor, timestamp=mw.Timestamp(noon + mw.seconds(second)))
            >>> harness.advance(mw.Timestamp(noon + mw.seconds(15)))
            >>> harness.values("silent")
            ['b is silent']

        By the wall clock, it is when no record of the key has arrived for ``after``. Until then, the low watermark of
        the results waits for the key's last record.

        Args:
            name: The name of the computation and of the stream of results.
            after: How long a key is silent, in microseconds.
            function: Returns the result for the key's last record: by timestamp, or by arrival on the wall clock.
            to: The type of a result. By default, what the function is annotated to return.
            domain: Whether ``after`` is an event time or a processing time.
            options: As for :meth:`Topology.add`.

        Raises:
            UsageError: ``after`` is not positive, or is probably in another unit. Or nothing states the type of a
                result.
        """
        result = one_result(name, function, to)
        step: Timeout[T] | ClockTimeout[T]
        if domain is TimeDomain.EVENT_TIME:
            step = Timeout(after, function, name, self.input.known_type, result)
        else:
            step = ClockTimeout(after, function, name, self.input.known_type, result)
        return self.step(name, step, result, options)

    @checked()
    def count_window(self, size: int, *, within: Duration | None = None) -> CountWindowedStream[T]:
        """The records of each key by windows of ``size`` records, in the order in which they arrive.

        After :meth:`KeyedStream.ordered_by_time` they are in the order of their timestamps. For example::

            >>> import millwheel as mw
            >>> from millwheel import agg
            >>> from millwheel.testing import TopologyHarness
            >>> loads = mw.Topology("loads")
            >>> keyed = loads.source("loads", int).key_by(mw.everything)
            >>> pairs = keyed.count_window(2).aggregate("pairs", total=agg.sum())
            >>> harness = TopologyHarness(loads)
            >>> for load in (5, 3, 8):
            ...     harness.send("loads", load, timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> [pair.total for pair in harness.values("pairs")]
            [8]

        Args:
            size: How many records a window has.
            within: When a window that is not full is produced as it is: as soon as the low watermark is so long after
                the timestamp of its first record, in microseconds. By default it waits for ever.
        """
        return CountWindowedStream(self, size, within)

    def declare(
        self,
        name: str,
        computation: Computation[Any, Any] | type[Computation[Any, Any]],
        outputs: Mapping[str, Any],
        options: StepOptions,
    ) -> None:
        """Declare the computation of a step."""
        declare_step(name, computation, [self.input], outputs, options)

    def step(self, name: str, computation: Computation[Any, Any], to: Any, options: StepOptions) -> Stream[Any]:
        """A step of the library, whose results are in the stream of its name."""
        self.declare(name, computation, {}, options)
        return Stream(self.stream.topology, (Branch(name),), to)
