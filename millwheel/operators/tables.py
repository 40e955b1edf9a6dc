"""Tables: the latest record of each key, what changes in them, and the joins with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.agg.reading import Of, Reader
from millwheel.model.time import MAX_TIMESTAMP, Duration, TimeInt, Timestamp
from millwheel.operators.joins import LEFT
from millwheel.sdk.computation import SAME_AS_INPUT, Computation
from millwheel.sdk.context import Context
from millwheel.sdk.durations import check_duration
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer

__all__ = ["Change", "Changes", "Latest", "LatestJoin", "TableJoin"]

T = TypeVar("T")
L = TypeVar("L")
R = TypeVar("R")


def _check(keep: Duration | None) -> Duration | None:
    """``keep``, after a check. UsageError if it is not positive, or is probably in another unit."""
    if keep is not None:
        check_duration("keep", keep)
    return keep


def _is_over(ctx: Context[Any], timer: Timer, at: int, keep: Duration | None, tag: str = "") -> bool:
    """Whether a timer is to forget a record of time ``at``. If not, an earlier ``keep`` has set it.

    The record then gets a timer for what is now its time, if it has one.
    """
    if keep is None:
        return False
    ends = min(at + keep, MAX_TIMESTAMP)
    if timer.timestamp < ends:
        ctx.set_timer(Timestamp(ends), tag)
    return timer.timestamp >= ends


def _forget_after(ctx: Context[Any], at: int, keep: Duration | None, tag: str = "") -> None:
    """Wake the key when the low watermark is ``keep`` after a record of time ``at``, or after now if that is late."""
    if keep is not None:
        ctx.set_timer(Timestamp(min(max(at, ctx.watermark) + keep, MAX_TIMESTAMP)), tag)


def _replaces(latest: list[tuple[TimeInt, T]], at: int, value: T, rank: Callable[[Any], Any] = rank_bytes) -> bool:
    """Whether a record is newer than the latest one, if there is one: by timestamp, then by ``rank``."""
    if not latest:
        return True
    time, other = latest[0]
    return at > time or (at == time and rank(value) > rank(other))


def _rank_by(ties: Of, item: Any) -> Callable[[Any], Any]:
    """What decides between records of the same timestamp: the tie, if there is one, and then the encoding.

    Raises:
        UsageError: The type of the records has no such field.
    """
    if ties is None:
        return rank_bytes
    reader = Reader(ties)
    reader.type_in(item)
    tie = reader.get
    return lambda value: (tie(value), rank_bytes(value))


class Latest(Computation[Any, list[tuple[TimeInt, T]]], Generic[T]):
    """Passes each record that is newer than all records of its key before, by timestamp.

    Of two records of the same timestamp the one with the larger tie is newer, then the one with the larger encoding. So
    the last record that passes does not depend on the order in which records arrive.

    Args:
        output: The stream of the records that pass.
        item: The type of the records.
        keep: How long the latest record of a key is kept, in microseconds of event time. None: for ever.
        ties: The field, or the function of the value, that decides between records of the same timestamp.

    Raises:
        UsageError: ``keep`` is not positive, or is probably in another unit. Or the records have no field ``ties``.
    """

    def __init__(self, output: str, item: Any, keep: Duration | None = None, ties: Of = None) -> None:
        self.output = output
        self._rank = _rank_by(ties, item)
        self.keep = _check(keep)
        # The type argument for T. It defines the type of the state.
        self.__orig_class__ = Latest[item]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: SAME_AS_INPUT}

    def process_record(self, ctx: Context[list[tuple[TimeInt, T]]], record: Record[Any]) -> None:
        """Pass the record if it is newer."""
        at, value, latest = record.timestamp, record.value, ctx.state
        if not _replaces(latest, at, value, self._rank):
            return
        latest[:] = [(at, value)]
        _forget_after(ctx, at, self.keep)
        ctx.produce(self.output, value)

    def process_timer(self, ctx: Context[list[tuple[TimeInt, T]]], timer: Timer) -> None:
        """Forget the key."""
        if ctx.state and _is_over(ctx, timer, ctx.state[0][0], self.keep):
            del ctx.state


class Change(msgspec.Struct, Generic[T], frozen=True):
    """A record that begins or ceases to hold for its key. See :meth:`KeyedStream.changes`.

    Args:
        value: The record.
        weight: 1 if the record holds from now on. -1 if it holds no more: then this is a *retraction* of it.
    """

    value: T
    weight: int


class Changes(Computation[Any, list[tuple[TimeInt, T]]], Generic[T]):
    """Produces what each record changes: the record of its key that arrived last, as a retraction, and then itself.

    Records are equal if their encodings are. An equal record changes nothing.

    Invariant: the state has the largest timestamp of the key's records. So a record that is older than others, and
    arrives after them, does not shorten the time for which the key is known.

    Args:
        output: The stream of the changes. They have the timestamps of the records that cause them.
        item: The type of the records.
        keep: How long a key is known after its newest record, in microseconds of event time. None: for ever. It is
            forgotten without a retraction.

    Raises:
        UsageError: ``keep`` is not positive, or is probably in another unit.
    """

    def __init__(self, output: str, item: Any, keep: Duration | None = None) -> None:
        self.output = output
        self.result = Change[item]
        self.keep = _check(keep)
        # The type argument for T. It defines the type of the state.
        self.__orig_class__ = Changes[item]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[list[tuple[TimeInt, T]]], record: Record[Any]) -> None:
        """Produce the changes, and renew the time."""
        value, last = record.value, ctx.state
        at: int = record.timestamp
        if last:
            newest, former = last[0]
            at = max(at, newest)
            # Not by ==, which for some types compares identities, fails, or finds no value equal to itself.
            if rank_bytes(former) == rank_bytes(value):
                if self.keep is not None:
                    last[0] = at, former
                    _forget_after(ctx, at, self.keep)
                return
            ctx.produce(self.output, Change(former, -1))
        last[:] = [(at, value)]
        _forget_after(ctx, at, self.keep)
        ctx.produce(self.output, Change(value, 1))

    def process_timer(self, ctx: Context[list[tuple[TimeInt, T]]], timer: Timer) -> None:
        """Forget the key."""
        if ctx.state and _is_over(ctx, timer, ctx.state[0][0], self.keep):
            del ctx.state


class LatestJoin(Computation[Any, list[R]], Generic[R]):
    """Joins each left record with the right record of its key that arrived last.

    Args:
        function: Returns the result of a left value and the right one, or None if there is none.
        output: The stream of the results. They have the timestamps of the left records.
        types: The types of the left records, the right records and the results.
        keep_left: Whether a left record without a right value is produced.
        removes: Whether a right value removes what is known of its key. None: none does.
        keep: How long a right value is kept, in microseconds of event time. None: for ever.

    Raises:
        UsageError: ``keep`` is not positive, or is probably in another unit.
    """

    def __init__(
        self,
        function: Callable[[Any, R | None], Any],
        output: str,
        types: tuple[Any, Any, Any],
        *,
        keep_left: bool = False,
        removes: Callable[[R], bool] | None = None,
        keep: Duration | None = None,
    ) -> None:
        _, right, self.result = types
        self.function = function
        self.output = output
        self.keep_left = keep_left
        self.removes = removes
        self.keep = _check(keep)
        # The type argument for R. It defines the type of the state.
        self.__orig_class__ = LatestJoin[right]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[list[R]], record: Record[Any]) -> None:
        """Produce the result of a left record, or keep a right one."""
        latest = ctx.state
        if record.stream == LEFT:
            if latest or self.keep_left:
                ctx.produce(self.output, self.function(record.value, latest[0] if latest else None))
        elif self.removes is not None and self.removes(record.value):
            ctx.cancel_timer()
            del ctx.state
        else:
            latest[:] = [record.value]
            _forget_after(ctx, record.timestamp, self.keep)

    def process_timer(self, ctx: Context[list[R]], timer: Timer) -> None:
        """Forget the right value, unless the timer is of an earlier form, which did not keep values for ever."""
        if self.keep is not None:
            del ctx.state


class BothTables(msgspec.Struct, Generic[L, R], array_like=True):
    """The newest record of each side of a key, if there is one, with its timestamp."""

    left: list[tuple[TimeInt, L]] = msgspec.field(default_factory=list)
    right: list[tuple[TimeInt, R]] = msgspec.field(default_factory=list)


class TableJoin(Computation[Any, BothTables[L, R]], Generic[L, R]):
    """Joins the newest left record of a key with the newest right one, whenever one of them changes.

    Newest is by timestamp, then by encoding, as for :class:`Latest`. So the last result of a key does not depend on the
    order in which records arrive.

    Args:
        function: Returns the result of a pair. In an outer join, the missing one is None.
        output: The stream of the results. They have the larger timestamp of both records.
        types: The types of the left records, the right records and the results.
        keep_left: Whether a left record without a right one is produced.
        keep_right: Whether a right record without a left one is produced.
        keep: How long the newest record of a side is kept, in microseconds of event time. None: for ever.

    Raises:
        UsageError: ``keep`` is not positive, or is probably in another unit.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        output: str,
        types: tuple[Any, Any, Any],
        *,
        keep_left: bool = False,
        keep_right: bool = False,
        keep: Duration | None = None,
    ) -> None:
        left, right, self.result = types
        self.function = function
        self.output = output
        self.keep_left = keep_left
        self.keep_right = keep_right
        self.keep = _check(keep)
        # The type arguments for L and R. They define the type of the state.
        self.__orig_class__ = TableJoin[left, right]  # type: ignore[valid-type]

    def declared_outputs(self) -> Mapping[str, Any]:
        """See Computation."""
        return {self.output: self.result}

    def process_record(self, ctx: Context[BothTables[L, R]], record: Record[Any]) -> None:
        """Produce the result of both sides, if the record is the newest of its side."""
        at, value, tables = record.timestamp, record.value, ctx.state
        mine: list[tuple[TimeInt, Any]] = tables.left if record.stream == LEFT else tables.right
        if not _replaces(mine, at, value):
            return
        mine[:] = [(at, value)]
        _forget_after(ctx, at, self.keep, record.stream)
        left, right = tables.left, tables.right
        if (left or self.keep_right) and (right or self.keep_left):
            result = self.function(left[0][1] if left else None, right[0][1] if right else None)
            ctx.produce(self.output, result, timestamp=Timestamp(max(time for time, _ in [*left, *right])))

    def process_timer(self, ctx: Context[BothTables[L, R]], timer: Timer) -> None:
        """Forget the record of one side."""
        tables = ctx.state
        mine: list[tuple[TimeInt, Any]] = tables.left if timer.tag == LEFT else tables.right
        if mine and _is_over(ctx, timer, mine[0][0], self.keep, timer.tag):
            mine.clear()
        if not tables.left and not tables.right:
            del ctx.state
