"""Topologies: computations, and the streams that connect them (sections 3 and 4, figure 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, overload

from millwheel.model.stream_names import DEAD_LETTERS
from millwheel.model.time import Duration, Timestamp, hours
from millwheel.sdk.codecs import Codec
from millwheel.sdk.dead_letters import DeadLetter
from millwheel.sdk.declarations import StreamDeclaration, StreamKind
from millwheel.sdk.options import Retention
from millwheel.sdk.topology import TopologyGraph
from millwheel.streams.checked import refuse_unknown
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream

if TYPE_CHECKING:
    from typing_extensions import TypeForm  # each type, also a union: type[T] is a class

    from millwheel.connectors.source import Source

__all__ = ["Topology"]

T = TypeVar("T")
ID_SLACK: Final = hours(1)


class ExternalOptions(TypedDict, total=False):
    """The options of :meth:`Topology.external`."""

    codec: Codec[Any] | None


class StreamOptions(ExternalOptions, total=False):
    """The options of :meth:`Topology.stream`."""

    retention: Retention | None


class SourceOptions(StreamOptions, total=False):
    """The options of :meth:`Topology.source`."""

    id_slack: Duration
    allowed_skew: Duration | None
    injectors: Iterable[str]


class ReadOptions(StreamOptions, total=False):
    """The options of :meth:`Topology.source` for a stream that the cluster reads."""

    timestamp: str | Callable[[Any], Timestamp | datetime] | None
    out_of_order: Duration
    idle_after: Duration | None
    find_every: Duration
    bad: str | None
    records_per_second: float | None
    any_timestamp: bool
    allowed_skew: Duration | None


class Topology(TopologyGraph):
    """A graph of computations, and the streams that connect them.

    A stream belongs to its topology. Its full name is ``TOPOLOGY/STREAM``, such as ``zeitgeist/queries``. The code of
    the topology calls it by its short name. To read a stream of another topology, declare it by :meth:`external`.

    The methods that build a topology do not raise on mistakes. :meth:`validate` returns all mistakes at once.
    :meth:`check` raises them as one TopologyError, and everything that runs a topology calls it. The order of the calls
    of :meth:`add` and of the declarations does not matter. For example::

        zeitgeist = millwheel.Topology("zeitgeist")
        zeitgeist.source("queries", Query)
        zeitgeist.add(WindowCounter, inputs={"queries": millwheel.key("text")}, outputs=["windows"])

    Each declaration returns the stream as a value, for programs that are written step by step::

        counts = zeitgeist.source("queries", Query).key_by("text").window(windows.tumbling(SECOND))
        counts.aggregate("windows", agg.count())

    Args:
        name: 1 to 63 of a-z, 0-9 and -, beginning with a letter.
    """

    @overload
    def source(
        self, name: str, record_type: type[T], reads: Source[T, Any], **options: Unpack[ReadOptions]
    ) -> Stream[T]: ...
    @overload
    def source(
        self, name: str, record_type: TypeForm[T], reads: Source[T, Any], **options: Unpack[ReadOptions]
    ) -> Stream[T]: ...
    @overload
    def source(self, name: str, record_type: type[T], **options: Unpack[SourceOptions]) -> Stream[T]: ...
    @overload
    def source(self, name: str, record_type: TypeForm[T], **options: Unpack[SourceOptions]) -> Stream[T]: ...
    @overload
    def source(self, name: str, record_type: Any, **options: Unpack[SourceOptions]) -> Stream[Any]: ...
    def source(
        self,
        name: str,
        record_type: Any,
        reads: Source[Any, Any] | None = None,
        *,
        retention: Retention | None = None,
        codec: Codec[Any] | None = None,
        **options: Any,
    ) -> Stream[Any]:
        """Declare a stream that comes from outside (section 5.2). It belongs to this topology.

        With ``reads``, the cluster reads it, exactly once, and no other program is needed. Without, injectors feed it.

        Args:
            name: The stream's name.
            record_type: The type of its values.
            reads: Where the records are: a :class:`millwheel.connectors.Source`.
            retention: What the stream keeps for subscribers that do not exist yet.
            codec: A user-defined encoding of its values.
            options: See below.

        With ``reads``:

        - ``timestamp``: the event time of a record: a field, or a function of the value. It is a Timestamp, or a
          datetime with a time zone. By default the source says it.
        - ``out_of_order``: how much older than the newest record of its split a record may be without being late.
          Microseconds, 0 by default.
        - ``idle_after``: after so long without a record, a split that has nothing more follows the wall clock. So it
          does not hold the low watermark back. Microseconds. By default, it waits for records. The source must say
          whether a split has more (``Read.behind``).
        - ``find_every``: the time between two searches for new splits. Microseconds, a second by default.
        - ``bad``: the stream that gets records that cannot be read, as :class:`millwheel.connectors.BadRecord`. By
          default, their split stops at them, and its error says what is wrong.
        - ``records_per_second``: the most records that each split reads in a second, on average: at least 1. So a
          backfill leaves something to others. By default, there is no limit.
        - ``any_timestamp``: whether records may be before 1980, or more than a year ahead of the clock. By default,
          such a record cannot be read.
        - ``allowed_skew``: how far a split may be ahead of the low watermark of all splits before it has to wait for
          the slower ones. So the states of windows stay bounded (8.4). Microseconds. By default, there is no limit.

        Without:

        - ``id_slack``: how long the ids of its records are kept after the low watermark passes them, to detect
          duplicates (6.1.1). Microseconds, an hour by default.
        - ``allowed_skew``: how far injected timestamps may be ahead of the low watermark before the injector has to
          wait. Microseconds. By default, there is no limit. Choose more than any consumer's hold waits for later
          records: an injector that may not send these would wait for ever.
        - ``injectors``: the injector processes whose low watermarks the stream waits for. By default, those that
          announce themselves.
        """
        if reads is not None:
            from millwheel.streams.sourcing import declare_source  # for programs that need it: it loads asyncio

            refuse_unknown(f"source({name!r}, ...) that is read", options, sorted(ReadOptions.__optional_keys__))
            declare_source(self, name, record_type, reads, **options)
            return self._handle(StreamDeclaration(name, StreamKind.STREAM, record_type, codec, retention))
        refuse_unknown(f"source({name!r})", options, sorted(SourceOptions.__optional_keys__))
        slack, skew = options.get("id_slack", ID_SLACK), options.get("allowed_skew")
        injectors = options.get("injectors", ())
        named = injectors if isinstance(injectors, str) else tuple(injectors)
        return self._handle(
            StreamDeclaration(name, StreamKind.SOURCE, record_type, codec, retention, slack, skew, named)
        )

    @overload
    def stream(self, name: str, record_type: type[T], **options: Unpack[StreamOptions]) -> Stream[T]: ...
    @overload
    def stream(self, name: str, record_type: TypeForm[T], **options: Unpack[StreamOptions]) -> Stream[T]: ...
    @overload
    def stream(self, name: str, record_type: Any, **options: Unpack[StreamOptions]) -> Stream[Any]: ...
    def stream(
        self,
        name: str,
        record_type: Any,
        *,
        retention: Retention | None = None,
        codec: Codec[Any] | None = None,
    ) -> Stream[Any]:
        """Declare a stream that a computation of this topology produces.

        A declaration is needed only if neither ``outputs=`` nor a consumer determines the type, or for the options
        below.

        Args:
            name: The stream's name.
            record_type: The type of its values.
            retention: What the stream keeps for subscribers that do not exist yet.
            codec: A user-defined encoding of its values.
        """
        return self._handle(StreamDeclaration(name, StreamKind.STREAM, record_type, codec, retention))

    @overload
    def external(self, name: str, record_type: type[T], **options: Unpack[ExternalOptions]) -> Stream[T]: ...
    @overload
    def external(self, name: str, record_type: TypeForm[T], **options: Unpack[ExternalOptions]) -> Stream[T]: ...
    @overload
    def external(self, name: str, record_type: Any, **options: Unpack[ExternalOptions]) -> Stream[Any]: ...
    def external(self, name: str, record_type: Any, *, codec: Codec[Any] | None = None) -> Stream[Any]:
        """Declare a stream of another topology, which this one consumes (section 4.3). Only its topology writes it.

        Args:
            name: The stream's full name, such as ``web/sessions``. ``inputs=`` and ``record.stream`` have it too.
            record_type: The type of its values.
            codec: A user-defined encoding of its values.
        """
        return self._handle(StreamDeclaration(name, StreamKind.EXTERNAL, record_type, codec))

    def dead_letters(self) -> Stream[DeadLetter]:
        """The records and timers that computations of this topology gave up (``on_failure=mw.dead_letter()``).

        For example, a step that counts them for each computation::

            >>> import millwheel as mw
            >>> from millwheel import agg
            >>> shop = mw.Topology("shop")
            >>> sales = shop.source("sales", int).map(lambda cents: 100 // cents, int).key_by(mw.everything)
            >>> shares = sales.update("shares", 0, lambda _, share: (0, [share]), int, on_failure=mw.dead_letter())
            >>> failed = shop.dead_letters().key_by("computation").aggregate("failed", failed=agg.count())
            >>> shop.validate()
            []
        """
        return Stream(self, (Branch(DEAD_LETTERS),), DeadLetter)

    def _handle(self, declaration: StreamDeclaration) -> Stream[Any]:
        self.declare(declaration)
        return Stream(self, (Branch(declaration.name),), declaration.type)
