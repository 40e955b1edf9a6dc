"""The context that a hook runs in: one key's state, timers, hold and productions (sections 4, 5.1).

A context collects what the hooks of one key did since the last commit began: nothing takes effect
elsewhere until the interval core seals it into a journal entry, and dropping the context together with
the cell's decoded state undoes all of it (a hook that raises leaves no trace).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

from millwheel.core.limits import MAX_PRODUCTIONS, MAX_TAG_BYTES, MAX_VALUE_BYTES
from millwheel.core.time import LAST_TIMESTAMP, MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from millwheel.core.units import (
    ANY_TIMESTAMP_VARIABLE,
    NEWEST_USUAL,
    OLDEST_USUAL,
    describe_wrong_unit,
    wrong_unit,
)
from millwheel.sdk.errors import (
    ProductionTimestampError,
    TooLargeError,
    UndeclaredStreamError,
    UsageError,
    ValueEncodeError,
)

__all__ = ["UNSET", "Context", "OutputBinding", "Production", "Scope", "StateCell", "TimerSetting"]

State = TypeVar("State")

UNSET: Any = object()
"""Stands for a state that has not been decoded, and for a hold that a context left alone."""


_PRODUCTION_BYTES: Final = 64
"""Counted for each production beside its value, and stream, consumers and keys, the producing one among them."""

_TIMER_BYTES: Final = 96
"""Counted for each timer that is set, beside its key and tag."""


_SMALLER_VALUES: Final = """produce it in pieces, for example
    for start in range(0, len(data), 1_000_000):
        ctx.produce({stream!r}, Piece(start, data[start : start + 1_000_000]))"""

_SLICES: Final = """make it in slices, in a chain of timers, for example
    for row in ctx.state[:100_000]: ctx.produce("rows", row)
    del ctx.state[:100_000]
    if ctx.state: ctx.set_timer(timer.timestamp, "next slice")"""


class TimerSetting(NamedTuple):
    """A timer as a hook set it. ``cause`` is the timestamp of what the hook ran for.

    ``origin`` is the position that the commit which journals it gives it: a timer set again is a new one.
    """

    at: int
    hold: int | None
    cause: int
    origin: int = 0


class Production(NamedTuple):
    """A record produced by a hook; ``targets`` are its consumers (incarnation ids) with their keys.

    ``origin`` names what the hook ran for, where ids are causal (weak productions).
    """

    stream: str
    value: bytes
    timestamp: int
    targets: tuple[tuple[str, bytes], ...]
    origin: Any = None


class OutputBinding:
    """How a stream is produced: ``encode`` its values, and ``route`` a value to its consumers' keys."""

    __slots__ = ("encode", "route")

    def __init__(self, encode: Callable[[Any], bytes], route: Callable[[Any], tuple[tuple[str, bytes], ...]]) -> None:
        self.encode = encode
        self.route = route


class Scope:
    """What all contexts of one interval share. The core moves ``watermark`` and ``now`` between batches."""

    __slots__ = (
        "any_timestamp",
        "computation",
        "decode_state",
        "floor_of",
        "handles_timers",
        "most",
        "new_state",
        "now",
        "outputs",
        "produced_bytes",
        "state_type",
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
    ) -> None:
        # The name of a state's type to which None does not belong; empty: None is assigned as any other state.
        self.state_type = state_type
        # False: a time that is probably in another unit fails the hook.
        self.any_timestamp = any_timestamp
        self.computation = computation
        self.outputs = dict(outputs)
        self.new_state = new_state
        self.decode_state = decode_state
        self.handles_timers = handles_timers
        self.watermark = 0
        # What a key had been shown before a merge, where that is above the watermark; None: no key of this interval.
        self.floor_of: Callable[[bytes], int] | None = None
        self.now = 0
        # Bytes produced since the batch began: beyond a bound no more hooks are run before its commit.
        self.produced_bytes = 0
        # Records that the hooks of one key may produce in one commit, and timers that they may set.
        self.most = MAX_PRODUCTIONS


class StateCell:
    """One key's state: ``encoded`` as the last sealed commit left it (empty: none), ``value`` decoded or UNSET."""

    __slots__ = ("encoded", "value")

    def __init__(self, encoded: bytes = b"") -> None:
        self.encoded = encoded
        self.value: Any = UNSET


class Context(Generic[State]):
    """Access to everything of one key (figure 7). Valid only while the hook that received it runs."""

    __slots__ = (
        "_cause",
        "_cell",
        "_earliest",
        "_hold",
        "_key",
        "_origin",
        "_produced",
        "_productions",
        "_scope",
        "_stamp",
        "_timers",
    )

    def __init__(self, key: bytes, cell: StateCell, scope: Scope) -> None:
        self._key = key
        self._cell = cell
        self._scope = scope
        self._productions: list[Production] | None = None
        self._timers: dict[tuple[bool, str], TimerSetting | None] | None = None
        self._produced = 0
        self._hold: Any = UNSET
        # Of the record or timer at hand: the default timestamp of a production, the least that one may have,
        # and the event time on whose account timers are set.
        self._stamp = 0
        self._earliest = 0
        self._cause = 0
        self._origin: Any = None

    def __repr__(self) -> str:
        return f"Context(computation={self._scope.computation!r}, key={self.key!r})"

    @property
    def key(self) -> str:
        """The key that the hook runs for."""
        return self._key.decode()

    @property
    def watermark(self) -> Timestamp:
        """The interval's input low watermark as this commit acts on it (section 4.5)."""
        scope = self._scope
        if scope.floor_of is None:
            return Timestamp(scope.watermark)
        return Timestamp(max(scope.watermark, scope.floor_of(self._key)))

    @property
    def now(self) -> Timestamp:
        """The wall time of this commit, the same for all its hooks; the only clock that hooks should ask."""
        return Timestamp(self._scope.now)

    @property
    def state(self) -> State:
        """The key's persistent state (section 4.4), to read and to change in place.

        A key without one gets what the state's type makes by default. What is left in it when the hook
        returns is committed; assign to replace it.

        ``del ctx.state`` leaves the key without a state: its row is deleted. A state that equals the constant default
        of its type counts as none in the same way. So does None, where the type allows it; else to assign None is a
        ValueEncodeError. A state that would not decode as its declared type, to an equal
        value, fails the hook with a ValueEncodeError when the commit is made.
        """
        cell = self._cell
        value = cell.value
        if value is UNSET:
            value = self._scope.decode_state(cell.encoded) if cell.encoded else self._scope.new_state()
            cell.value = value
        elif value is None:
            value = cell.value = self._scope.new_state()
        return value  # type: ignore[no-any-return]

    @state.setter
    def state(self, value: State) -> None:
        if value is None and self._scope.state_type:
            raise ValueEncodeError(
                f"computation {self._scope.computation!r}, state carries {self._scope.state_type}, not None: use "
                "`del ctx.state` to leave the key without a state (a method that changes in place, such as "
                "`dict.update`, returns None)"
            )
        self._cell.value = value

    def produce(self, stream: str, value: Any, *, timestamp: Timestamp | None = None) -> None:
        """Produce a record to ``stream`` (section 4.3).

        Its timestamp is by default that of the record or timer at hand, and never MAX_TIMESTAMP: what is produced at
        the end of a stream stands a microsecond before it. One behind its cause and its hold
        (behind the record's timestamp or the timer's hold, and the hold of the key's state) would be behind a
        watermark that consumers may have seen, and is a ProductionTimestampError; UndeclaredStreamError for a
        stream that the topology does not list among this computation's outputs; TooLargeError beyond 1 MiB
        a record. How much one hook call produces in all is bounded by memory alone: beyond 15 million records it is a
        TooLargeError. All of it takes effect together. A value that would not decode as the stream's type, to an equal
        value, is a ValueEncodeError.
        """
        binding = self._scope.outputs.get(stream)
        if binding is None:
            raise UndeclaredStreamError(self._scope.computation, stream, tuple(self._scope.outputs))
        at = self._stamp if timestamp is None else min(self._checked(timestamp, "produce"), LAST_TIMESTAMP)
        if at < self._earliest:
            raise ProductionTimestampError(self._scope.computation, stream, at, self._earliest)
        encoded = binding.encode(value)
        if encoded.__class__ is not bytes:
            encoded = bytes(memoryview(encoded))  # a codec of the user's own made it
        if len(encoded) > MAX_VALUE_BYTES:
            what = f"a record produced to {stream!r}"
            raise TooLargeError(what, len(encoded), MAX_VALUE_BYTES, _SMALLER_VALUES.format(stream=stream))
        self._add(Production(stream, encoded, at, binding.route(value), self._origin))

    def _add(self, production: Production) -> None:
        names = len(production.stream) + len(self._key)
        to = sum([len(consumer) + len(key) for consumer, key in production.targets])
        self._made(len(production.value) + names + to + _PRODUCTION_BYTES)
        if self._productions is None:
            self._productions = []
        elif len(self._productions) >= self._scope.most:
            raise self._too_many("produce", "records")
        self._productions.append(production)

    def set_timer(self, at: Timestamp, tag: str = "", *, wall: bool = False, hold: Timestamp | None = None) -> None:
        """Have ``process_timer`` called for this key when the low watermark, or the wall clock, reaches ``at``.

        A key has one timer per domain and tag: setting it again replaces it. Until the firing is
        committed the timer holds the output watermark at ``hold``, by default at ``at`` (wall timers: at the
        timestamp of what the hook runs for), so that what the firing produces is not late (section 4.6).
        """
        if not self._scope.handles_timers:
            raise UsageError(
                f"computation {self._scope.computation!r} sets a timer, and has no process_timer: define it"
            )
        at = self._checked(at, "set_timer", wall)
        hold = None if hold is None else self._checked(hold, "set_timer(hold=…)")
        if not isinstance(tag, str):
            raise UsageError(f"a timer's tag is a str, not {type(tag).__name__}: {tag!r}")
        if len(tag) * 4 > MAX_TAG_BYTES and len(tag.encode()) > MAX_TAG_BYTES:
            raise TooLargeError(f"the timer tag {tag[:32]!r}…", len(tag.encode()), MAX_TAG_BYTES)
        self._made(_TIMER_BYTES + len(self._key) + len(tag))
        if self._timers is None:
            self._timers = {}
        elif len(self._timers) >= self._scope.most:
            raise self._too_many("set", "timers")
        self._timers[wall, tag] = TimerSetting(at, hold, self._cause)

    def cancel_timer(self, tag: str = "", *, wall: bool = False) -> None:
        """Cancel the timer of that domain and tag, if there is one."""
        if self._timers is None:
            self._timers = {}
        self._timers[wall, tag] = None

    def _made(self, size: int) -> None:
        """Count what goes into the commit beside states: once it is much, no more hooks run before the commit."""
        self._produced += size
        self._scope.produced_bytes += size

    def _too_many(self, verb: str, unit: str) -> TooLargeError:
        what = f"what the hooks of key {self.key!r} {verb} in one commit"
        return TooLargeError(what, self._scope.most + 1, self._scope.most, _SLICES, unit=unit)

    def set_hold(self, timestamp: Timestamp) -> None:
        """Hold the output watermark at ``timestamp`` on account of this key's state, until cleared (section 5.2).

        From the next commit on hooks of the key may produce records from ``timestamp`` on. One behind the output
        watermark as it has been reported holds nothing back any more, and counts as the timestamp of what
        the hook runs for.
        """
        self._hold = (self._checked(timestamp, "set_hold"), self._cause)

    def clear_hold(self) -> None:
        """Let go of the state's hold."""
        self._hold = None

    def _checked(self, timestamp: Timestamp, method: str, wall: bool = False) -> Timestamp:
        """The timestamp, if it is one: what is journaled as anything else could not be read again."""
        if type(timestamp) is not int and not _is_integer(timestamp):
            kind = type(timestamp).__name__
            raise UsageError(f"{method} takes a Timestamp (integer microseconds), not {kind}: {timestamp!r}")
        if not OLDEST_USUAL <= timestamp <= NEWEST_USUAL:
            self._check_unusual(timestamp, method, wall)
        return Timestamp(int(timestamp))

    def _check_unusual(self, timestamp: Timestamp, method: str, wall: bool) -> None:
        """UsageError for a time that is out of range, or that only another unit explains."""
        if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
            raise UsageError(f"{method} takes a Timestamp between MIN_TIMESTAMP and MAX_TIMESTAMP, not {timestamp}")
        reference = self._scope.now if wall else self._cause
        unit = "" if self._scope.any_timestamp else wrong_unit(timestamp, reference)
        if unit:
            relative = "ctx.now" if wall else "the timestamp of the record or timer"
            raise UsageError(
                f"{method} takes a moment in microseconds since 1970. {describe_wrong_unit(timestamp, unit)}. "
                f"If the number is a delay, add it to {relative}. "
                f"If the moment is meant, set {ANY_TIMESTAMP_VARIABLE}=1 where the hook runs"
            )


def _clear_state(context: Context[Any]) -> None:
    context._cell.value = None


def _deletable(plain: Any) -> property:
    """A property with what ``del`` does. Where mypyc, which refuses deleters, compiled it, it is another descriptor."""
    if isinstance(plain, property):
        return plain.deleter(_clear_state)
    return property(plain.__get__, plain.__set__, _clear_state, plain.__doc__)


setattr(Context, "state", _deletable(vars(Context)["state"]))  # noqa: B010 - mypy takes the name for a property


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
