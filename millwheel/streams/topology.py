"""Topologies: computations, and the streams that connect them (sections 3 and 4, figure 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypedDict, TypeVar, Unpack, overload

from millwheel.model.stream_names import DEAD_LETTERS
from millwheel.model.time import Duration, hours
from millwheel.sdk.codecs import Codec
from millwheel.sdk.dead_letters import DeadLetter
from millwheel.sdk.declarations import StreamDeclaration, StreamKind
from millwheel.sdk.options import Retention
from millwheel.sdk.topology import TopologyGraph
from millwheel.streams.steps import Branch
from millwheel.streams.stream import Stream

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
    def source(self, name: str, record_type: type[T], **options: Unpack[SourceOptions]) -> Stream[T]: ...
    @overload
    def source(self, name: str, record_type: Any, **options: Unpack[SourceOptions]) -> Stream[Any]: ...
    def source(
        self,
        name: str,
        record_type: Any,
        *,
        id_slack: Duration = ID_SLACK,
        allowed_skew: Duration | None = None,
        injectors: Iterable[str] = (),
        retention: Retention | None = None,
        codec: Codec[Any] | None = None,
    ) -> Stream[Any]:
        """Declare a stream that injectors feed (section 5.2). It belongs to this topology.

        Args:
            name: The stream's name.
            record_type: The type of its values.
            id_slack: How long the ids of its records are kept after the low watermark passes them, to detect duplicates
                (6.1.1). Microseconds.
            allowed_skew: How far injected timestamps may be ahead of the low watermark before the injector has to wait.
                Microseconds; None sets no limit. Choose more than any consumer's hold waits for later records: an
                injector that may not send these would wait for ever.
            injectors: The injector processes whose low watermarks the stream waits for. Empty: those that announce
                themselves.
            retention: What the stream keeps for subscribers that do not exist yet.
            codec: A user-defined encoding of its values.
        """
        named = injectors if isinstance(injectors, str) else tuple(injectors)
        return self._handle(
            StreamDeclaration(name, StreamKind.SOURCE, record_type, codec, retention, id_slack, allowed_skew, named)
        )

    @overload
    def stream(self, name: str, record_type: type[T], **options: Unpack[StreamOptions]) -> Stream[T]: ...
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
