"""Hooks that get their records in the order of event time (sections 4.5, 4.6).

The records of a key wait in its state until the low watermark has passed them. Then the hook gets them in their order,
in the same computation. So no hop comes between, on which the order could be lost.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from millwheel.agg.reading import Of, Reader
from millwheel.model.time import TimeDomain, Timestamp
from millwheel.operators.ordered_context import NEVER, OrderedContext, Queue, Waiting, Wrapped, alarm
from millwheel.sdk.computation import Computation, input_and_state_types, overrides_migrate, overrides_timer_hook
from millwheel.sdk.context import Context
from millwheel.sdk.defaults import default_of, makes_the_same
from millwheel.sdk.errors import UsageError
from millwheel.sdk.growing.fields import is_growing
from millwheel.sdk.migration import StoredState
from millwheel.sdk.ranking import rank_bytes
from millwheel.sdk.records import Record, Timer

__all__ = ["LIMIT", "Ordered", "in_order"]

T = TypeVar("T")
S = TypeVar("S")
LIMIT: Final = 10_000
"""The most records of a key that wait by default."""
MAX_STEPS: Final = 1_000
"""The most hooks that one firing calls. The next firing calls others."""

Hook = Callable[[Any, Any], Awaitable[None] | None]
Call = tuple[Hook, Any]


def in_order(inner: Computation[Any, Any], item: Any, *, ties: Of = None, limit: int = LIMIT) -> Computation[Any, Any]:
    """The computation ``inner``, whose hooks get the records of each key in the order of their timestamps.

    Args:
        inner: A computation of one input.
        item: The type of the records, if ``inner`` takes records of any type.
        ties: The field, or the function of the value, that decides between records of the same timestamp. What is still
            equal is in the order of the encodings.
        limit: The most records of a key that wait. The hook fails at a record beyond it.

    Raises:
        UsageError: The computation has a ``state_codec`` or a growing state, or does not state its types. Or ``limit``
            is not positive.
    """
    if limit < 1:
        raise UsageError(f"ordered_by_time takes a positive limit, not {limit}")
    name = type(inner).__name__
    if inner.state_codec is not None:
        raise UsageError(f"{name} has a state_codec of its own, so no state with the records that wait can have it")
    types = input_and_state_types(inner)
    if types is None:
        raise UsageError(f"{name} does not state its types: write class {name}(millwheel.Computation[Input, State])")
    taken, state = types
    if is_growing(state):
        raise UsageError(
            f"{name} has a growing state, which cannot hold the records that wait for ordered_by_time: keep the "
            "records in an OrderedState of its own, and take them by pop_until in a timer"
        )
    hooks = (inner.process_record, inner.process_timer)
    kind = AsyncOrdered if any(inspect.iscoroutinefunction(hook) for hook in hooks) else Ordered
    return kind(inner, item if taken is Any else taken, state, ties, limit)


class Ordered(Computation[T, Queue[T, S]], Generic[T, S]):
    """Calls the hooks of another computation in the order of event time. :func:`in_order` makes it.

    Invariant: ``inner`` is called in the order (timestamp, tie, encoding) for records that are not late. Each of its
    event-time timers comes after all records before its time, and before all others. So what it does depends on the
    records alone, and not on the order of their arrival. A late record is passed at once, if ``late=`` lets it through.
    """

    def __init__(self, inner: Computation[Any, Any], item: Any, state: Any, ties: Of, limit: int) -> None:
        self.inner = inner
        self.item = item
        self.limit = limit
        self.state_version = inner.state_version
        if overrides_migrate(inner):
            self.migrate = self._migrate  # type: ignore[method-assign]  # what is defined counts as overridden
        tie = None if ties is None else Reader(ties).get
        self._rank: Callable[[Waiting[Any]], Any] = (
            (lambda one: rank_bytes(one[1])) if tie is None else lambda one: (tie(one[1]), rank_bytes(one[1]))
        )
        new = default_of(state)
        self._wrapped = Wrapped(type(inner).__name__, new, makes_the_same(new), overrides_timer_hook(inner))
        # The type arguments for T and S. They define the type of the state.
        self.__orig_class__ = type(self)[item, state]  # type: ignore[index]

    def declared_outputs(self) -> Mapping[str, Any] | None:
        """See Computation."""
        return self.inner.declared_outputs()

    def _implementation(self) -> type:
        return type(self.inner)

    def _migrate(self, stored: StoredState) -> Queue[T, S]:
        """Convert the state of ``inner`` by its own ``migrate``. The records that wait stay."""
        waiting, timers, raw = msgspec.msgpack.decode(stored.data, type=_stored_type(self.item))
        encoded = bytes(raw)
        state = None if encoded == _NIL else self.inner.migrate(StoredState(stored.version, encoded))
        return Queue(waiting, timers, state)

    def process_record(self, ctx: Context[Queue[T, S]], record: Record[Any]) -> Awaitable[None] | None:
        """Keep the record until the low watermark has passed it."""
        if record.late:
            face = OrderedContext(ctx, self._wrapped)
            return self._run(face, self._pass(face, record))
        self._keep(ctx, record)
        return None

    def process_timer(self, ctx: Context[Queue[T, S]], timer: Timer) -> Awaitable[None] | None:
        """Pass what the low watermark has passed."""
        face = OrderedContext(ctx, self._wrapped)
        return self._run(face, self._fire(face, timer))

    def _run(self, face: OrderedContext[Any], calls: Iterator[Call]) -> Awaitable[None] | None:
        for hook, item in calls:
            if hook(face, item) is not None:
                raise UsageError(f"{hook.__qualname__} returned a value, and a hook returns None")
        return None

    def _pass(self, face: OrderedContext[Any], record: Record[Any]) -> Iterator[Call]:
        """What to call for a late record."""
        before = alarm(face.queue)
        face.at(record.timestamp, face.real.watermark)
        yield self.inner.process_record, record
        face.rearm(before)

    def _fire(self, face: OrderedContext[Any], timer: Timer) -> Iterator[Call]:
        """What to call for a timer of the computation."""
        before = None
        if timer.domain is TimeDomain.PROCESSING_TIME:
            before = alarm(face.queue)
            face.at(None, face.real.watermark)
            yield self.inner.process_timer, timer
        yield from self._due(face)
        face.rearm(before)

    def _keep(self, ctx: Context[Queue[T, S]], record: Record[Any]) -> None:
        """Keep a record that is not late. So the low watermark has passed nothing that waits."""
        queue = ctx.state
        waiting: list[Waiting[Any]] = queue.waiting
        new: Waiting[Any] = record.timestamp, record.value, record.stream
        if len(waiting) >= self.limit:
            raise ValueError(
                f"{len(waiting)} records of the key wait for the low watermark, which is the limit of the step: "
                "raise its limit=, or find out what holds the watermark back"
            )
        # A tuple of a time alone comes before all records of this time. So no values are compared.
        low = bisect_left(waiting, (new[0],))
        if low < len(waiting) and waiting[low][0] == new[0]:
            high = bisect_left(waiting, (new[0] + 1,), low)
            low = bisect_right(waiting, self._rank(new), low, high, key=self._rank)
        waiting.insert(low, new)
        if low == 0 and (due := alarm(queue)) is not None:
            ctx.set_timer(Timestamp(due[0]), hold=Timestamp(due[1]))

    def _due(self, face: OrderedContext[Any]) -> Iterator[Call]:
        """The records and timers of ``inner`` that the low watermark has passed, in their order."""
        waiting: list[Any] = face.queue.waiting
        timers = face.queue.timers
        watermark, key = face.real.watermark, face.key.encode()
        process, done, ready = self.inner.process_record, 0, bisect_left(waiting, (watermark,))
        try:
            for _ in range(MAX_STEPS):
                at, tag = face.first_timer() if timers else NEVER
                if done < ready and waiting[done][0] < at:
                    time, value, stream = waiting[done]
                    done += 1
                    face.at(time, time)
                    yield process, Record(key, b"", time, stream, _unused, False, value)
                elif at <= watermark:
                    stamp = max(face.remove_timer(tag) or (at,))
                    face.at(stamp, stamp)
                    yield self.inner.process_timer, Timer(tag, Timestamp(at))
                else:
                    break
        finally:
            del waiting[:done]


class AsyncOrdered(Ordered[T, S], Generic[T, S]):
    """The same for asynchronous hooks."""

    async def process_record(self, ctx: Context[Queue[T, S]], record: Record[Any]) -> None:
        """See Ordered."""
        if record.late:
            face = OrderedContext(ctx, self._wrapped)
            await self._run_all(face, self._pass(face, record))
        else:
            self._keep(ctx, record)

    async def process_timer(self, ctx: Context[Queue[T, S]], timer: Timer) -> None:
        """See Ordered."""
        face = OrderedContext(ctx, self._wrapped)
        await self._run_all(face, self._fire(face, timer))

    async def _run_all(self, face: OrderedContext[Any], calls: Iterator[Call]) -> None:
        for hook, item in calls:
            pending = hook(face, item)
            if pending is not None:
                await pending


_NIL: Final = msgspec.msgpack.encode(None)


def _stored_type(item: Any) -> Any:
    """A queue whose inner state is not decoded."""
    return cast("Any", tuple[list[tuple[int, item, str]], dict[str, tuple[int, int]], msgspec.Raw])


def _unused(encoded: bytes) -> Any:
    raise AssertionError("the record has its value")
