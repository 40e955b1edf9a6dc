"""Streams as values: what a program does with the records of a stream, step by step (section 3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from millwheel.agg.reading import Of, Reader
from millwheel.operators import COPIES, ROWS
from millwheel.sdk.computation import Computation
from millwheel.sdk.context import Context
from millwheel.sdk.declarations import UNKNOWN, DerivedStream, Reading, declare_computation
from millwheel.sdk.errors import UsageError
from millwheel.sdk.expressions import Expression, plain_function
from millwheel.sdk.keys import key
from millwheel.sdk.options import ComputationOptions
from millwheel.sdk.records import Record
from millwheel.sdk.selections import Selection
from millwheel.sdk.spreading import bytes_reader, copier, spreader
from millwheel.sdk.topology import TopologyGraph
from millwheel.sdk.typeinfo import returned_type
from millwheel.streams.broadcasting import declare_broadcast
from millwheel.streams.checked import checked
from millwheel.streams.declaring import Input, StepOptions
from millwheel.streams.derivations import value_key
from millwheel.streams.enriching import CallOptions, declare_calls
from millwheel.streams.fields import extractor_of
from millwheel.streams.missing_steps import MissingSteps
from millwheel.streams.result_types import awaited_result, item_of, one_result
from millwheel.streams.sinking import WriteOptions, declare_sink
from millwheel.streams.steps import Branch, Filter, FlatMap, Map, Only, Step, divide, on_a_copy, to_many, to_one

if TYPE_CHECKING:
    from millwheel.connectors.sink import Sink
    from millwheel.streams.keyed import KeyedStream

__all__ = ["Stream"]

T = TypeVar("T")
U = TypeVar("U")
V = TypeVar("V")
_SHARDS = 1_024
"""How many keys a step without a key spreads its records over: enough for as many intervals."""


class Stream(MissingSteps, Generic[T]):
    """A stream of a topology, or what stateless steps make of it.

    :meth:`Topology.source` returns one, and so does each stateful step. ``filter``, ``map``, ``flat_map``, ``union``
    and ``split`` return another one. They cost no hop: they run inside the computation that reads the result. Steps
    before ``key_by`` may also run at the sender, in an injector too, because the sender needs the key. Nothing
    is computed while the program is built. For example::

        >>> import msgspec
        >>> import millwheel as mw
        >>> class Bid(msgspec.Struct):
        ...     auction: int
        ...     price: int
        >>> q2 = mw.Topology("q2")
        >>> bids = q2.source("bids", Bid)
        >>> low, high = bids.filter(lambda bid: bid.auction % 123 == 0).split(lambda bid: bid.price < 1_000)
        >>> named = high.map(lambda bid: bid.auction, int).named("auctions")
        >>> q2.validate()
        []
    """

    def __init__(self, topology: TopologyGraph, branches: tuple[Branch, ...], record_type: Any) -> None:
        self.topology = topology
        self.branches = branches
        self.record_type = record_type
        """The type of its values. UNKNOWN if nothing states it."""

    def __repr__(self) -> str:
        return f"Stream({' | '.join(map(str, self.branches))})"

    # Stateless steps.

    def filter(self, keep: Callable[[T], bool]) -> Stream[T]:
        """The records for whose values ``keep`` is true.

        Args:
            keep: Depends on the value alone. If it raises, the hook that reads the record fails. Where a key is read
                only from records that pass, the key's extraction fails. It may be an expression, such as
                ``mw.col("price") > 100``.

        Raises:
            UsageError: ``keep`` is an expression of a field that the values do not have.
        """
        return self._with(Filter(plain_function(keep, self.record_type)), self.record_type)

    def map(self, function: Callable[[T], U], to: type[U] | None = None) -> Stream[U]:
        """Each value replaced by ``function(value)``, with the same timestamp.

        Args:
            function: Depends on the value alone.
            to: The type of its results. By default, what the function is annotated to return. It is needed only where
                the results become a stream of their own (:meth:`named`).

        Raises:
            UsageError: ``function`` is an expression of a field that the values do not have.
        """
        function = plain_function(function, self.record_type)
        return self._with(Map(function), to or returned_type(function) or UNKNOWN)

    def select(self, to: type[U], /, **fields: Any) -> Stream[U]:
        """Each value replaced by one of type ``to``, whose fields are fields of the value or expressions of them.

        It does what :meth:`map` with a function does that makes such values. Its content is known: windows by columns
        compute it for all rows of a table at once. A key that it takes over needs no code at the sender. For example::

            >>> import msgspec
            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> class Sale(msgspec.Struct):
            ...     shop: str
            ...     cents: int
            >>> class Income(msgspec.Struct):
            ...     shop: str
            ...     euros: float
            >>> shop = mw.Topology("shop")
            >>> sales = shop.source("sales", Sale)
            >>> incomes = sales.select(Income, euros=mw.col("cents") / 100).named("incomes")
            >>> harness = TopologyHarness(shop)
            >>> harness.send("sales", Sale("north", 250), timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> harness.values("incomes")
            [Income(shop='north', euros=2.5)]

        Args:
            to: A struct, a dataclass or another type with named fields.
            fields: By field of ``to``: an expression, or the path of a field, such as ``"user.age"``. A field that is
                not given is that of the same name, if the value has one, or else its default.

        Raises:
            UsageError: ``to`` has no such field, or needs one that is not given. Or the value has no such field. Or a
                field cannot hold what it is given.
        """
        known = Any if self.record_type is UNKNOWN else self.record_type
        return self._with(Map(Selection(to, fields, known).function()), to)

    def flat_map(self, function: Callable[[T], Iterable[U]], to: type[U] | None = None) -> Stream[U]:
        """Each value replaced by all values of ``function(value)``, with the same timestamp.

        The results need a stream of their own before ``key_by``: they may have different keys. Call :meth:`named`.

        Args:
            function: Depends on the value alone.
            to: The type of one result. By default, what the function is annotated to return.
        """
        function = plain_function(function, self.record_type)
        return self._with(FlatMap(function), to or item_of(returned_type(function)) or UNKNOWN)

    def only(self, kind: type[U]) -> Stream[U]:
        """The records whose values are of class ``kind``: those of one kind, in a stream of several.

        Args:
            kind: A class.
        """
        return self._with(Only(kind), kind)

    def peek(self, look: Callable[[T], object]) -> Stream[T]:
        """The same records. ``look`` is called with each value, to see in a test what passes here. For example::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> shop, seen = mw.Topology("shop"), []
            >>> big = shop.source("sales", int).peek(seen.append).filter(lambda cents: cents > 100).named("big")
            >>> harness = TopologyHarness(shop)
            >>> for cents in (50, 200):
            ...     harness.send("sales", cents, timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> seen, harness.values("big")
            ([50, 200], [200])

        Args:
            look: Any function of a value; what it returns is ignored. It is called where the step runs: in a worker,
                and where the next key is read also in an injector. It may be called several times for a record.
        """
        return self.filter(lambda value: (look(value), True)[1])

    def split(self, choose: Callable[[T], bool]) -> tuple[Stream[T], Stream[T]]:
        """Two streams: the records for whose values ``choose`` is true, and the others."""
        others: Any = lambda value: not choose(value)  # noqa: E731
        if isinstance(choose, Expression) and choose.type_in(self.record_type) is bool and not choose.is_largest:
            others = ~choose
        return self.filter(choose), self.filter(others)

    def union(self, *others: Stream[T]) -> Stream[T]:
        """The records of this stream and of others, of the same type.

        Streams of different types make a union of types. Structs need tags for it: a reader finds the type by them::

            >>> import msgspec
            >>> import millwheel as mw
            >>> class Request(msgspec.Struct, tag=True):
            ...     driver: str
            >>> class Offer(msgspec.Struct, tag=True):
            ...     driver: str
            >>> rides = mw.Topology("rides")
            >>> both = rides.source("requests", Request).union(rides.source("offers", Offer)).key_by("driver")
            >>> seen = both.update("seen", 0, lambda count, one: (count + 1, [count + 1]), int)
            >>> rides.validate()
            []

        A stream of both, such as that of ``too_late=``, is read as dicts unless ``Topology.stream`` states its type:
        ``rides.stream("too-late", Request | Offer)``. An aggregate does not know the type of a field of a union, so it
        is given: ``agg.distinct("driver", str)``.

        Raises:
            UsageError: Another stream is of another topology.
        """
        for other in others:
            if other.topology is not self.topology:
                raise UsageError(
                    f"union() of streams of topology {self.topology.name!r} and of {other.topology.name!r}: a "
                    "topology reads another one's stream by external()"
                )
        branches = (*self.branches, *(branch for other in others for branch in other.branches))
        types = {id(one.record_type): one.record_type for one in (self, *others)}
        return Stream(self.topology, branches, self.record_type if len(types) == 1 else UNKNOWN)

    # A stream of its own, and keys.

    def named(self, name: str) -> Stream[T]:
        """The same records as a stream of their own, under a name: to subscribe to it, or to key it after ``flat_map``.

        What a computation has produced becomes another output of this computation. Records from injectors and from
        other topologies take a hop: a computation of this name reads them, without state.

        Args:
            name: The stream's name, and the computation's.
        """
        fed = [branch for branch in self.branches if self.topology.is_fed(branch.stream)]
        for branch in self.branches:
            if branch not in fed:
                steps = on_a_copy(branch.steps, copier(self.topology, branch.stream))
                self.topology.declare(DerivedStream(name, branch.stream, self.record_type, to_many(steps)))
        if fed:
            self._add_hop(name, fed)
        return Stream(self.topology, (Branch(name),), self.record_type)

    @overload
    def key_by(self, field: str, /, *fields: str) -> KeyedStream[T]: ...
    @overload
    def key_by(self, function: Callable[[T], str | int], /, *, name: str = "") -> KeyedStream[T]: ...
    def key_by(self, *parts: Any, name: str = "") -> KeyedStream[T]:
        """The records with a key, by which the steps that follow keep their state.

        For example, how often each word has been said::

            >>> import millwheel as mw
            >>> from millwheel import agg
            >>> from millwheel.testing import TopologyHarness
            >>> talk = mw.Topology("talk")
            >>> words = talk.source("words", str).key_by(lambda word: word.lower(), name="word")
            >>> counts = words.aggregate("counts", times=agg.count())
            >>> harness = TopologyHarness(talk)
            >>> for word in ("Tea", "tea"):
            ...     harness.send("words", word, timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> [(count.word, count.times) for count in harness.values("counts")]
            [('tea', 1), ('tea', 2)]

        Args:
            parts: Field paths such as ``"auction"`` or ``"user.id"``, or one function. A function that only reads a
                field, such as ``lambda bid: bid.auction``, is the same as this field's path, and mypy checks it.
            name: What aggregates call the key of a function, beside ``key``. It may change without an effect on
                records and state. A key of fields is called as they are.

        Raises:
            UsageError: The arguments are neither field paths nor one function. Or ``name`` is no name of a field, or is
                given with paths.
        """
        from millwheel.streams.keyed import KeyedStream

        if len(parts) == 1 and isinstance(parts[0], Expression):
            parts = (plain_function(parts[0], self.record_type),)
        return KeyedStream(self, extractor_of(parts, name))

    def sample(self, share: float, by: Of = None, *, seed: int = 0) -> Stream[T]:
        """A share of the records, chosen by a hash.

        Whether a value is chosen depends on the value alone. So a hook that runs again gets the same records, and equal
        values are chosen together. For example, all clicks of one user in ten::

            >>> import millwheel as mw
            >>> clicks = mw.Topology("clicks").source("clicks", tuple[int, str])
            >>> some = clicks.sample(0.1, by=lambda click: click[0])

        Args:
            share: From 0 to 1.
            by: The field, or the function of the value, that is hashed. By default the complete value.
            seed: Another seed chooses other values. A sample of a sample needs one.

        Raises:
            UsageError: ``share`` is not from 0 to 1.
        """
        if not 0 <= share <= 1:
            raise UsageError(f"sample takes a share from 0 to 1, not {share}")
        read, most, salt = Reader(by).get, round(share * 2**64), seed.to_bytes(16, "big", signed=True)
        encode = bytes_reader(self.topology, [branch.stream for branch in self.branches])

        def chosen(value: T) -> bool:
            return int.from_bytes(blake2b(encode(read(value)), digest_size=8, salt=salt).digest()) < most

        return self.filter(chosen)

    @checked(CallOptions)
    def enrich(
        self,
        name: str,
        function: Callable[[T], Awaitable[U]],
        to: type[U] | None = None,
        **options: Unpack[CallOptions],
    ) -> Stream[U]:
        """The results of calls of a service, one for each record. They have the timestamps of the records.

        They come in any order. After ``key_by`` the results of each key come in the order of its records
        (:meth:`KeyedStream.enrich`). For example::

            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> async def look_up(item: str) -> int:
            ...     return len(item)
            >>> shop = mw.Topology("shop")
            >>> prices = shop.source("items", str).enrich("prices", look_up, int, concurrency=16, retries=2)
            >>> harness = TopologyHarness(shop)
            >>> harness.send("items", "tea", timestamp=mw.Timestamp(1_700_000_000_000_000))
            >>> harness.values("prices")
            [3]
            >>> harness.close()

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
        given = Input(self.topology, self.branches, self.record_type, value_key(self.topology, self.branches))
        result = awaited_result(name, function, to)
        declare_calls(given, name, function, result, options, keyed=False)
        return Stream(self.topology, (Branch(name),), result)

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
        """Each record with a complete small table, such as rules or the parameters of a model.

        The table has the last value of each key of ``table``. There are ``copies`` of it, and each record meets one of
        them. All copies get all changes in one order. For example::

            >>> import msgspec
            >>> import millwheel as mw
            >>> from millwheel.testing import TopologyHarness
            >>> class Rule(msgspec.Struct):
            ...     id: str
            ...     most: int
            >>> bank = mw.Topology("bank")
            >>> rules = bank.source("rules", Rule).key_by("id")
            >>> def broken(cents: int, table: Mapping[str, Rule]) -> list[str]:
            ...     return sorted(rule.id for rule in table.values() if cents > rule.most)
            >>> checked = bank.source("payments", int).join_broadcast("checked", rules, broken)
            >>> harness, now = TopologyHarness(bank), mw.Timestamp(1_700_000_000_000_000)
            >>> for rule in (Rule("large", 500), Rule("huge", 900)):
            ...     harness.send("rules", rule, timestamp=now)
            >>> harness.send("payments", 700, timestamp=now)
            >>> harness.values("checked")
            [['large']]

        The result is produced at once, with the table as it has arrived at the copy. With ``as_of`` it is produced when
        the low watermark has passed the record, with the table as of the record's timestamp. So it depends on the
        timestamps alone. In both cases the low watermark of the results waits for that of ``table``, too.

        Args:
            name: The name of the computation and of the stream of results. The table is the state of ``NAME-table``.
            table: The stream of the rows, by their keys.
            function: Returns the result of a record and the table. It must not change the rows.
            to: The type of a result. By default, what the function is annotated to return.
            as_of: Whether a record waits for the table of its time. A change that is late then holds from the low
                watermark on, unless its row has a newer value.
            removes: Whether a value removes its row. By default none does.
            copies: How many records may be processed at the same time, and how often each change is stored. It stays as
                long as the step has its name.
            limit: The most rows. A change beyond it fails, and ``on_failure`` decides. With ``as_of``, so many changes
                may also wait for the low watermark, or 10,000 if that is more.
            options: As for :meth:`Topology.add`. ``late`` is for the records, and not for the changes.

        Raises:
            UsageError: ``table`` has no key, or is a stream of another topology, or a row may be None. Or a key is no
                field. Or ``copies`` or ``limit`` is not positive. Or nothing states the type of a result. Or
                ``exactly_once`` is False. Or ``as_of`` meets ``on_failure=mw.dead_letter()``: all records of a copy
                that wait have one timer.
        """
        result = one_result(name, function, to)
        given = Input(self.topology, self.branches, self.record_type, value_key(self.topology, self.branches))
        declare_broadcast(
            given,
            table,
            name,
            function,
            result,
            as_of=as_of,
            removes=removes,
            copies=copies,
            limit=limit,
            options=options,
            keyed=False,
        )
        return Stream(self.topology, (Branch(name),), result)

    @checked(WriteOptions)
    def to(self, name: str, sink: Sink[T], **options: Unpack[WriteOptions]) -> None:
        """Write the records to a sink, exactly once, as far as the sink can (docs/connectors.md).

        Two computations do it: ``NAME-batches`` makes numbered batches, and ``NAME`` writes them.

        Args:
            name: The name of the sink. What was written is known by it, so it should stay when the program changes.
            sink: Where the records go, such as :func:`millwheel.connectors.database`.
            options: ``shards``: how many writers there are (1). ``batch_records``: the most records of a batch
                (1,000). ``batch_delay``: how long a record waits for its batch, in microseconds (0.1 seconds).

        Raises:
            UsageError: It is no sink, its name is too long, or an option is not positive. Or nothing states the type of
                the records.
        """
        extractor = value_key(self.topology, self.branches)
        declare_sink(
            Input(self.topology, self.branches, self.record_type, extractor), name, sink, options, ordered=False
        )

    def _with(self, step: Step, record_type: Any) -> Stream[Any]:
        branches = tuple(Branch(branch.stream, (*branch.steps, step)) for branch in self.branches)
        return Stream(self.topology, branches, record_type)

    def _add_hop(self, name: str, branches: list[Branch]) -> None:
        read: dict[str, list[tuple[Step, ...]]] = {}
        for branch in branches:
            alone = sum(each.stream == branch.stream for each in branches) == 1
            steps = branch.steps if alone else on_a_copy(branch.steps, copier(self.topology, branch.stream))
            read.setdefault(branch.stream, []).append(steps)
        inputs = {stream: key(spreader(self.topology, stream, _SHARDS)) for stream in read}
        # What one pipeline does to a record before a flat_map needs no hook. So a record that it drops has none.
        divided = {stream: divide(each[0]) for stream, each in read.items() if len(each) == 1}
        rest = {stream: [divided[stream][1]] if stream in divided else each for stream, each in read.items()}
        hop = _Hop(name, {stream: [to_many(steps) for steps in each] for stream, each in rest.items()})
        declared = declare_computation(hop, name, inputs, {name: self.record_type}, ComputationOptions())
        for stream, (first, _) in divided.items():
            if first:
                declared.readings[stream] = (Reading(stream, UNKNOWN, to_one(first)),)
        self.topology.declare(declared)


class _Hop(Computation[Any, None]):
    """Expands records into a stream of their own. The key has no meaning."""

    def __init__(self, output: str, pipelines: dict[str, list[Callable[[Any], Iterable[Any]]]]) -> None:
        self.output = output
        self.pipelines = pipelines

    def process_record(self, ctx: Context[None], record: Record[Any]) -> None:
        """Produce all values that the pipelines make of the record."""
        for expand in self.pipelines[record.stream]:
            for value in expand(record.value):
                ctx.produce(self.output, value)
