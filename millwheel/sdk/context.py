"""The context of a hook: one key's state, timers, hold and productions (sections 4, 5.1).

A context collects the effects of one key's hooks since the last commit began. They take effect elsewhere only after the
interval core has sealed them into a journal entry. To undo them, the core drops the context and the decoded state. A
hook that raises therefore has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, TypeVar

from millwheel.model.limits import MAX_VALUE_BYTES
from millwheel.model.time import LAST_TIMESTAMP, Timestamp
from millwheel.rpc.columns import RecordColumns
from millwheel.sdk.context_timers import TimersAndHold
from millwheel.sdk.effects import ProducedColumns, ProducedRead, ProducedTable, Production, Targets
from millwheel.sdk.errors import (
    ProductionTimestampError,
    UndeclaredStreamError,
    UsageError,
    ValueEncodeError,
)
from millwheel.sdk.hook_faults import large_production, too_many
from millwheel.sdk.records import EncodeAll
from millwheel.sdk.scope import UNSET, FixedRoute, OutputBinding, Scope, StateCell

__all__ = ["Context", "has_fixed_route", "production_of", "productions_of"]

State = TypeVar("State")

_PRODUCTION_BYTES: Final = 64
"""The size counted for each production, in addition to its value, stream, consumers and keys (its own key included)."""
_ENCODED_AT_ONCE: Final = 64
"""So many values are encoded before their bytes are counted. To count after each would cost as much as to encode."""


class Context(TimersAndHold, Generic[State]):
    """Access to all data of one key (figure 7). It is valid only while the hook that received it runs."""

    __slots__ = ("_cause_id", "_cause_index", "_cell", "_dropped", "_earliest", "_productions", "_read", "_stamp")

    def __init__(self, key: bytes, cell: StateCell, scope: Scope) -> None:
        self._key = key
        self._cell = cell
        self._scope = scope
        self._productions: list[Production] | None = None
        # What a source has read at once. It comes before the other productions.
        self._read: ProducedRead | ProducedTable | None = None
        self._timers = None
        self._produced = 0
        self._dropped = 0
        self._hold = UNSET
        # From the record or timer of the current hook: the default timestamp of productions, the least timestamp of
        # productions, and the event time for which timers are set.
        self._stamp = 0
        self._earliest = 0
        self._cause = 0
        # What identifies the input of the current hook, for ids of weak productions. For a record: (ids of its
        # delivery, index). While the index is not negative, it stands beside the ids, and no tuple is made yet.
        self._cause_id: Any = None
        self._cause_index = -1

    def __repr__(self) -> str:
        return f"Context(computation={self._scope.computation!r}, key={self.key!r})"

    @property
    def key(self) -> str:
        """The key that the hook runs for."""
        return self._key.decode()

    @property
    def watermark(self) -> Timestamp:
        """The interval's input low watermark that this commit uses (section 4.5)."""
        scope = self._scope
        if scope.bound_of is None:
            return Timestamp(scope.watermark)
        return Timestamp(max(scope.watermark, scope.bound_of(self._key)))

    @property
    def now(self) -> Timestamp:
        """The wall-clock time of the owner. Hooks should use no other clock.

        It does not go back from one hook of a key to the next, also on another owner, unless a clock was wrong by more
        than ten seconds.
        """
        return Timestamp(self._scope.now)

    @property
    def state(self) -> State:
        """The key's persistent state (section 4.4). Read it, change it in place, or assign a new one.

        A key without a state gets the default of the state's type. The value at the end of the hook is committed.

        ``del ctx.state`` leaves the key without a state and deletes its row. A state that equals the constant default
        of its type has the same effect. So does None, if the type allows None.

        Raises:
            ValueEncodeError: None is assigned, and the type does not allow it. Also, when the commit is made, if the
                state would not decode as its declared type to an equal value. The hook then fails.
        """
        cell = self._cell
        value = cell.value
        if value is UNSET:
            value = self._scope.decode_state(cell.encoded) if cell.encoded else self._scope.new_state()
            cell.value = value
            if self._scope.growing is not None:
                self._scope.growing.bind(self, value)
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
        if self._scope.growing is not None and value is not self._cell.value:
            raise UsageError(
                f"computation {self._scope.computation!r} replaces a growing state: set its fields, and use "
                "`del ctx.state` to empty it"
            )
        self._cell.value = value

    def produce(self, stream: str, value: Any, *, timestamp: Timestamp | None = None) -> None:
        """Produce a record to ``stream`` (section 4.3).

        All productions of a hook call take effect together. Their total size is limited by memory alone.

        Args:
            stream: One of this computation's outputs.
            value: A value of the stream's type. Its encoding must decode to an equal value.
            timestamp: Microseconds since the epoch. By default, the timestamp of the current record or timer.
                MAX_TIMESTAMP becomes one microsecond less.

        Raises:
            UndeclaredStreamError: The topology does not list the stream among this computation's outputs.
            ProductionTimestampError: The timestamp is below both the hook's cause and the hold of the key's state. The
                cause is the record's timestamp or the timer's hold. Consumers may have seen a higher watermark already.
            TooLargeError: The encoded value exceeds 1 MiB, or the hooks of the key produce over 15 million records in
                this commit.
            ValueEncodeError: The value would not decode as the stream's type to an equal value.
            UsageError: The timestamp is not an integer, is out of range, or is probably in another unit.
        """
        binding = self._scope.outputs.get(stream)
        if binding is None:
            raise UndeclaredStreamError(self._scope.computation, stream, tuple(self._scope.outputs))
        at = self._stamp if timestamp is None else self._checked(timestamp, "produce")
        if at > LAST_TIMESTAMP:
            at = LAST_TIMESTAMP
        if at < self._earliest:
            raise ProductionTimestampError(self._scope.computation, stream, at, self._earliest)
        self._produce(binding, value, at)

    def _produce(self, binding: OutputBinding, value: Any, at: int) -> None:
        encoded = binding.encode(value)
        if type(encoded) is not bytes:
            encoded = bytes(memoryview(encoded))  # a user's codec may return any buffer
        if len(encoded) > MAX_VALUE_BYTES:
            raise large_production(binding.stream, len(encoded))
        self._add(Production(binding.stream, encoded, at, binding.route(value), self._cause_name()))
        for derived, expand in binding.derived:
            for each in expand(value):
                self._produce(derived, each, at)

    def _produce_all(self, binding: OutputBinding, values: Sequence[Any], stamps: Sequence[int], most: int) -> bool:
        """Produce records of usual times, as ``_produce`` does one by one. A source has a thousand at once.

        They may be behind the hook's hold, as all records of sources may. They stay columns on their way to consumers.

        Args:
            binding: The output. It has no derived streams.
            values: The values.
            stamps: Their timestamps.
            most: Up to so many bytes, with what the key has produced since the last commit. So there are not too many.

        Returns:
            False, and nothing is produced, if one of them fails or is too large, or if the key has productions that no
            commit has. One by one, the records before it are produced, and it says what is wrong.
        """
        if binding.route_all is None or self._read is not None or self._productions is not None:
            return False
        encode = binding.encode_all or partial(_encode_each, binding.encode)
        try:
            encoded = _encode_up_to(most - self._produced, encode, values)
            if encoded is None or len(encoded) != len(values):
                return False
            targets = binding.route_all(values)
        except Exception:
            return False
        size = sum(map(len, encoded)) + len(values) * (len(binding.stream) + len(self._key) + _PRODUCTION_BYTES)
        size += _bytes_of(targets, len(values))
        if self._produced + size > most:
            return False
        self._made(size)
        self._scope.any_produced = True
        self._read = ProducedRead(binding.stream, encoded, stamps, targets, self._cause_name())
        return True

    def _produce_table(self, binding: OutputBinding, records: RecordColumns, most: int) -> bool:
        """Produce records that are columns. They stay so on their way to consumers.

        Invariant (G1): each has the value and the keys that it has one by one. Their source answers for the values.

        Args:
            binding: The output. It has no derived streams.
            records: The records, of usual times, as its type has them.
            most: As for ``_produce_all``.

        Returns:
            False, and nothing is produced, if a column does not have the keys of a consumer, if a record or the schema
            is too large, or if the key has productions that no commit has.
        """
        targets = binding.key_columns
        if targets is None or self._read is not None or self._productions is not None:
            return False
        if not all(records.has_keys(key) for _, key in targets):
            return False
        count = len(records)
        if records.why_unreadable or (records.average * count > MAX_VALUE_BYTES < records.longest):
            return False
        size = records.average + len(binding.stream) + len(self._key) + _PRODUCTION_BYTES
        size = count * (size + sum(len(consumer) for consumer, _ in targets))
        if self._produced + size > most:
            return False
        self._made(size)
        self._scope.any_produced = True
        self._read = ProducedTable(binding.stream, records, targets, self._cause_name())
        return True

    def _caused_by(self, cause_id: Any) -> None:
        """The next hook runs for what ``cause_id`` identifies."""
        self._cause_id, self._cause_index = cause_id, -1

    def _cause_name(self) -> Any:
        """What identifies the input of the current hook. It is one object for all productions of a call."""
        if self._cause_index >= 0:
            self._caused_by((self._cause_id, self._cause_index))
        return self._cause_id

    def _add(self, production: Production) -> None:
        # It has no comprehension and no call of ``_made``, because it runs for each production.
        size = len(production.value) + len(production.stream) + len(self._key) + _PRODUCTION_BYTES
        for consumer, key in production.targets:
            size += len(consumer) + len(key)
        self._produced += size
        self._scope.produced_bytes += size
        productions = self._productions
        if productions is None:
            productions = self._productions = []
            self._scope.any_produced = True
        elif len(productions) >= self._scope.most:
            raise too_many(self.key, "produce", "records", self._scope.most)
        productions.append(production)

    def count_dropped(self, records: int = 1) -> None:
        """Count records that the hook drops because they are too late to have an effect (section 4.5).

        They are counted with the hook's commit, beside those that ``late=Late.DROP`` drops: in the metric
        ``millwheel_dropped_records_total``, and in ``TopologyHarness.counts``.

        Args:
            records: How many.
        """
        self._dropped += records


def production_of(scope: Scope, stream: str, at: Timestamp) -> Callable[[bytes, Any], list[Production]]:
    """A function from a key and a value to what a hook of the key produces with ``produce(stream, value)`` at ``at``.

    It raises what a context does. It makes one only where it has more to do: for streams with others derived from them,
    and for its errors.
    """
    binding = _usual(scope, stream, at)
    if binding is None:
        return partial(_produced, scope, stream, at)
    found, name, names = binding, binding.stream, len(binding.stream) + _PRODUCTION_BYTES
    encode = binding.encode

    def produced(key: bytes, value: Any) -> list[Production]:
        encoded = encode(value)
        if type(encoded) is not bytes:
            encoded = bytes(memoryview(encoded))
        if len(encoded) > MAX_VALUE_BYTES:
            raise large_production(name, len(encoded))
        targets = found.route(value)
        size = len(encoded) + names + len(key)
        for consumer, of_consumer in targets:
            size += len(consumer) + len(of_consumer)
        scope.produced_bytes += size
        return [Production(name, encoded, at, targets)]

    return produced


def productions_of(
    scope: Scope, stream: str, at: Timestamp, encode: EncodeAll | None = None
) -> Callable[[Sequence[bytes], Sequence[Any], list[bytes] | None, int], ProducedColumns | None] | None:
    """A function from keys and a value of each to what their hooks produce, as ``production_of`` makes it one by one.

    ``encode`` encodes many values, each as the output's encoder does. The function also takes the encoded values, if
    there are some: values are not needed then for a FixedRoute. Its last argument says with how many bytes the batch is
    full. It returns None, and nothing is produced, if there are so many, or if one of them fails or is missing.
    One by one, those before it are produced, and it says what is wrong.

    There is no such function (None) if the output needs a context, or finds no targets of many values.
    """
    binding = _usual(scope, stream, at)
    if binding is None or binding.route_all is None:
        return None
    name, route, route_all = binding.stream, binding.route, binding.route_all
    encode_all = encode or partial(_encode_each, binding.encode)

    def produced(
        keys: Sequence[bytes], values: Sequence[Any], encoded: list[bytes] | None, most: int
    ) -> ProducedColumns | None:
        count = len(keys)
        try:
            if encoded is None:
                encoded = _encode_up_to(most, encode_all, values)
            if encoded is None or len(encoded) != count or max(map(len, encoded)) > MAX_VALUE_BYTES:
                return None
            if isinstance(route, FixedRoute):
                targets: Targets = route.targets
            elif len(values) != count:
                return None
            else:
                targets = route_all(values)
        except Exception:
            return None
        size = sum(map(len, encoded)) + sum(map(len, keys)) + count * (len(name) + _PRODUCTION_BYTES)
        size += _bytes_of(targets, count)
        if size >= most:
            return None
        scope.produced_bytes += size
        return ProducedColumns(name, at, keys, encoded, targets)

    return produced


def has_fixed_route(scope: Scope, stream: str) -> bool:
    """Whether values that are produced to the stream have the same consumers and keys."""
    binding = scope.outputs.get(stream)
    return binding is not None and isinstance(binding.route, FixedRoute)


def _usual(scope: Scope, stream: str, at: Timestamp) -> OutputBinding | None:
    """The output, if what is produced to it at that time needs no context."""
    binding = scope.outputs.get(stream)
    if binding is None or binding.derived:
        return None
    first: Context[Any] = Context(b"", StateCell(), scope)
    first._cause = at
    try:
        first._checked(at, "produce")
    except UsageError:
        return None
    return binding


def _produced(scope: Scope, stream: str, at: Timestamp, key: bytes, value: Any) -> list[Production]:
    context: Context[Any] = Context(key, StateCell(), scope)
    context._stamp = context._cause = context._earliest = at
    before = scope.produced_bytes
    try:
        context.produce(stream, value, timestamp=at)
    except BaseException:
        scope.produced_bytes = before
        raise
    return context._productions or []


def _bytes_of(targets: Targets, count: int) -> int:
    """The bytes that are counted for the consumers of so many records, and for the keys there."""
    size = 0
    for consumer, keys in targets:
        size += len(consumer) * count + (len(keys) * count if isinstance(keys, bytes) else sum(map(len, keys)))
    return size


def _encode_each(encode: Callable[[Any], bytes], values: Sequence[Any]) -> list[bytes]:
    return list(map(encode, values))


def _encode_up_to(most: int, encode: EncodeAll, values: Sequence[Any]) -> list[bytes] | None:
    """Encode values. None if one is too large, or if all are more than ``most`` bytes.

    *Invariant (G13): it holds that many bytes, and those of one part more.* Values may share what is large in them.
    """
    encoded: list[bytes] = []
    for start in range(0, len(values), _ENCODED_AT_ONCE):
        part = encode(values[start : start + _ENCODED_AT_ONCE])
        sizes = list(map(len, part))
        if set(map(type, part)) != {bytes} or max(sizes) > MAX_VALUE_BYTES:
            return None
        most -= sum(sizes)
        if most < 0:
            return None
        encoded += part
    return encoded


def _clear_state(context: Context[Any]) -> None:
    if context._scope.growing is not None:
        context._scope.growing.reset(context.state)
    else:
        context._cell.value = None


def _state_of(context: Context[Any]) -> Any:
    return context.state


def _set_state(context: Context[Any], value: Any) -> None:
    context.state = value


def _deletable(plain: Any) -> property:
    """A property with a deleter. mypyc rejects deleters, so a class that mypyc compiled has another descriptor here.

    Its ``__get__`` would do, but takes a tuple for each call. Each hook reads its state.
    """
    if isinstance(plain, property):
        return plain.deleter(_clear_state)
    return property(_state_of, _set_state, _clear_state, plain.__doc__)


setattr(Context, "state", _deletable(vars(Context)["state"]))  # noqa: B010 - mypy takes the name for a property
