"""What contexts work on: what those of one interval share, and a key's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_PRODUCTIONS
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.sdk.compiling import mypyc_attr
from millwheel.sdk.effects import KeyColumns, Targets

__all__ = [
    "PAGES_TAG",
    "UNSET",
    "ConnectorCounts",
    "FixedRoute",
    "GrowingStates",
    "OutputBinding",
    "RouteOfAll",
    "Scope",
    "StateCell",
    "route_of_all",
]

UNSET: Final[Any] = object()
"""Marks a state that is not decoded yet, and a hold that the context does not change."""

PAGES_TAG: Final = "millwheel/pages"
"""The tag of the timer that deletes pages of a growing state. Users set no timer with it."""


class FixedRoute:
    """A route to the same consumers and keys for each value, as that to logs is."""

    __slots__ = ("targets",)

    def __init__(self, targets: tuple[tuple[IncarnationId, bytes], ...]) -> None:
        self.targets = targets

    def __call__(self, value: Any) -> tuple[tuple[IncarnationId, bytes], ...]:
        """The targets."""
        return self.targets


RouteOfAll = Callable[[Sequence[Any]], Targets]
"""The targets of many values."""


def route_of_all(
    keyed: Sequence[tuple[IncarnationId, Callable[[Any], bytes]]], fixed: Sequence[tuple[IncarnationId, bytes]] = ()
) -> RouteOfAll:
    """The route to consumers that each extract a key of their own, and to ``fixed`` consumers and keys.

    It raises what an extractor raises. One by one, it is found for which value.
    """

    def route(values: Sequence[Any]) -> Targets:
        found = [(consumer, list(map(extract, values))) for consumer, extract in keyed]
        if any(len(keys) != len(values) for _, keys in found):  # map() takes a user's StopIteration for the end
            raise ValueError("a function of keys has raised StopIteration")
        return (*found, *fixed)

    return route


class OutputBinding:
    """One output ``stream``, by its full name: ``encode`` a value, and ``route`` it to the consumers' keys.

    Each value is also expanded into values of ``derived`` streams, by a function for each of them. ``encode_all`` and
    ``route_all`` do the same for many values, which a source reads or windows result in. None: there is no such way.
    Only computations that read a source have ``encode_all`` and ``key_columns``: the consumers of records that are
    columns. None: each record needs a value.
    """

    __slots__ = ("derived", "encode", "encode_all", "key_columns", "route", "route_all", "stream")

    def __init__(
        self,
        stream: str,
        encode: Callable[[Any], bytes],
        route: Callable[[Any], tuple[tuple[IncarnationId, bytes], ...]],
        route_all: RouteOfAll | None = None,
        encode_all: Callable[[Sequence[Any]], list[bytes]] | None = None,
        key_columns: KeyColumns | None = None,
    ) -> None:
        self.stream = stream
        self.encode = encode
        self.encode_all = encode_all
        self.key_columns = key_columns
        self.route = route
        self.route_all = route_all
        self.derived: tuple[tuple[OutputBinding, Callable[[Any], Iterable[Any]]], ...] = ()


class GrowingStates(Protocol):
    """The states of a computation whose state grows (``millwheel/sdk/growing``)."""

    def bind(self, context: Any, state: Any) -> None:
        """``context`` has decoded the state of its key, whose pages are read and written from now on."""

    def reset(self, state: Any) -> None:
        """Empty a state."""


class ConnectorCounts(Protocol):
    """What the hooks of sources and sinks count for operators."""

    def has_read(
        self,
        stream: str,
        split: str,
        sizes: Sequence[int],
        behind: int | None,
        *,
        ended: bool,
        lost: int = 0,
        bad: int = 0,
        bad_stream: str = "",
        last_error: str = "",
    ) -> None:
        """A read of a split has ended.

        Args:
            stream: The full name of the stream that the source is read into.
            split: The split.
            sizes: The bytes of each record.
            behind: How many records wait in the split, if the source knows.
            ended: Whether it has no more records.
            lost: How many records were lost since the read before.
            bad: How many of the records could not be read.
            bad_stream: The full name of the stream that gets these.
            last_error: Why the last one of them could not be read.
        """

    def has_written(self, records: int, size: int, seconds: float) -> None:
        """A batch of so many records and bytes was written, and that took so long."""


class Scope:
    """The data that all contexts of one interval share. The core updates ``watermark`` and ``now`` between batches.

    It has many attributes: contexts are made for each key, and have here what is the same for all of them.
    """

    __slots__ = (
        "any_produced",
        "any_timestamp",
        "bound_of",
        "computation",
        "connector",
        "decode_state",
        "growing",
        "handles_timers",
        "most",
        "new_state",
        "now",
        "outputs",
        "own_low_watermark",
        "produced_bytes",
        "real_clock",
        "state_type",
        "topology",
        "watermark",
    )

    def __init__(
        self,
        computation: str,
        outputs: Mapping[str, OutputBinding],
        new_state: Callable[[], Any],
        decode_state: Callable[[bytes], Any],
        handles_timers: bool,
        any_timestamp: bool = True,
        state_type: str = "",
        topology: str = "",
        connector: ConnectorCounts | None = None,
        *,
        real_clock: bool = True,
    ) -> None:
        # The name of a state type that does not include None. Empty: None may be assigned like any other state.
        self.state_type = state_type
        # False: a timestamp that is probably in another unit makes the hook fail.
        self.any_timestamp = any_timestamp
        # False: ``now`` is a test's, and says of no record that it is far ahead.
        self.real_clock = real_clock
        self.computation = computation
        # The name under which the topology runs.
        self.topology = topology
        self.connector = connector
        self.outputs = dict(outputs)
        self.new_state = new_state
        self.decode_state = decode_state
        self.handles_timers = handles_timers
        # None: a state is one value.
        self.growing: GrowingStates | None = None
        self.watermark = 0
        # The watermark bound of a key after a merge, if it is above ``watermark``. None: no key of this interval has
        # one.
        self.bound_of: Callable[[bytes], int] | None = None
        # The low watermark of the whole computation, as it was last broadcast to this interval.
        self.own_low_watermark: Callable[[], int] = lambda: MIN_TIMESTAMP
        self.now = 0
        # Bytes produced since the batch began. Above a limit, no more hooks run before the commit.
        self.produced_bytes = 0
        # Whether a hook has produced a record since then. It stays so if that hook is undone.
        self.any_produced = False
        # The most records that the hooks of one key may produce in one commit, and the most timers that they may set.
        self.most = MAX_PRODUCTIONS


@mypyc_attr(acyclic=True)
class StateCell:
    """One key's state. ``encoded`` is from the last sealed commit (empty: no state); ``value`` is decoded, or UNSET.

    Compiled, the garbage collector does not know it: with a million keys it would visit a million of them. Invariant
    (G13): no value leads back to its cell, or to what has the cells. Else neither would ever be freed.
    """

    __slots__ = ("encoded", "value")

    def __init__(self, encoded: bytes = b"") -> None:
        self.encoded = encoded
        self.value: Any = UNSET
