"""The context of a hook that gets its records in the order of event time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from millwheel.model.time import MAX_TIMESTAMP, TimeDomain, Timestamp
from millwheel.sdk.context import Context
from millwheel.sdk.errors import UsageError
from millwheel.sdk.round_trip import is_equal

__all__ = ["NEVER", "OrderedContext", "Queue", "Waiting", "Wrapped", "alarm"]

NEVER: Final = (MAX_TIMESTAMP + 1, "")
"""The time and tag of no timer."""

T = TypeVar("T")
S = TypeVar("S")

Waiting = tuple[int, T, str]
"""(timestamp, value, stream) of a record."""


class Queue(msgspec.Struct, Generic[T, S], array_like=True):
    """The records of a key that wait in their order, its hooks' event-time timers (at, hold), and its own state."""

    waiting: list[tuple[int, T, str]] = msgspec.field(default_factory=list)
    timers: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    state: S | None = None


def alarm(queue: Queue[Any, Any]) -> tuple[int, int] | None:
    """When a key must be woken next, and where it holds the output watermark until then. None: never."""
    first = min(queue.waiting[0][0] + 1, MAX_TIMESTAMP) if queue.waiting else None
    if not queue.timers:
        return None if first is None else (first, queue.waiting[0][0])
    at = min([at for at, _ in queue.timers.values()])
    hold = min([hold for _, hold in queue.timers.values()])
    return (at, hold) if first is None else (min(at, first), min(hold, queue.waiting[0][0]))


class Wrapped(NamedTuple):
    """What a context needs to know of the computation whose hooks get their records in order."""

    name: str
    new: Callable[[], Any]
    """Returns the state of a key without state."""
    constant: bool
    """Whether ``new`` always returns an equal state. A key with this state counts as a key without state."""
    handles_timers: bool


class OrderedContext(Generic[S]):
    """What a hook gets in place of a Context. ``watermark`` is the time that the hooks of the key have come to.

    The event-time timers of the hook are in the queue, so that they come at their places among the records. One real
    timer of the key wakes the computation for the first of all. It has many methods because a Context has them.
    """

    __slots__ = ("_first", "_inner", "_stamp", "_watermark", "queue", "real")

    def __init__(self, real: Context[Queue[Any, S]], inner: Wrapped) -> None:
        self.real = real
        self.queue = real.state
        self._inner = inner
        self._stamp: int | None = None
        self._watermark = 0
        self._first: tuple[int, str] | None = None
        """(time, tag) of the first timer in the queue. None: it must be looked for."""

    def at(self, stamp: int | None, watermark: int) -> None:
        """Prepare for the next hook. ``stamp``: the timestamp of its productions. None: as in any other timer."""
        self._stamp, self._watermark = stamp, watermark

    @property
    def key(self) -> str:
        """See Context."""
        return self.real.key

    @property
    def now(self) -> Timestamp:
        """See Context."""
        return self.real.now

    @property
    def watermark(self) -> Timestamp:
        """Every record below it has been passed to the hook, except late ones."""
        return Timestamp(self._watermark)

    @property
    def state(self) -> S:
        """See Context."""
        if self.queue.state is None:
            self.queue.state = self._inner.new()
        return self.queue.state  # None only if the type allows it

    @state.setter
    def state(self, value: S) -> None:
        if value is None and self._inner.new() is not None:
            raise UsageError("the state is None, which is not of its type: use `del ctx.state`")
        self.queue.state = value

    @state.deleter
    def state(self) -> None:
        self.queue.state = None

    def produce(self, stream: str, value: Any, *, timestamp: Timestamp | None = None) -> None:
        """See Context."""
        stamp, earliest = self._stamp, self.real._earliest
        if timestamp is None and stamp is not None:
            # What a late record sets may be later than its own time, as in any computation.
            timestamp = Timestamp(stamp if stamp > earliest else earliest)
        self.real.produce(stream, value, timestamp=timestamp)

    def set_timer(
        self,
        at: Timestamp,
        tag: str = "",
        *,
        domain: TimeDomain = TimeDomain.EVENT_TIME,
        hold: Timestamp | None = None,
    ) -> None:
        """See Context."""
        if not self._inner.handles_timers:
            raise UsageError(f"{self._inner.name} sets a timer, and has no process_timer: define it")
        if domain is TimeDomain.EVENT_TIME:
            at = self.real._checked(at, "set_timer")
            # A timer for a time that has passed is as late as what sets it.
            until = max(at, self._stamp or at) if hold is None else self.real._checked(hold, "set_timer(hold=…)")
            self.queue.timers[tag] = at, until
            if self._first is not None:
                self._first = None if self._first[1] == tag else min(self._first, (at, tag))
            return
        if hold is None and self._stamp is not None:
            hold = Timestamp(self._stamp)
        self.real.set_timer(at, tag, domain=domain, hold=hold)

    def cancel_timer(self, tag: str = "", *, domain: TimeDomain = TimeDomain.EVENT_TIME) -> None:
        """See Context."""
        if domain is TimeDomain.EVENT_TIME:
            self.remove_timer(tag)
        else:
            self.real.cancel_timer(tag, domain=domain)

    def set_hold(self, timestamp: Timestamp) -> None:
        """See Context."""
        self.real.set_hold(timestamp)

    def clear_hold(self) -> None:
        """See Context."""
        self.real.clear_hold()

    def count_dropped(self, records: int = 1) -> None:
        """See Context."""
        self.real.count_dropped(records)

    # For the computation that owns the queue.

    def first_timer(self) -> tuple[int, str]:
        """(time, tag) of the hooks' first event-time timer. A time after all others if there is none."""
        if not self.queue.timers:
            return NEVER
        if self._first is None:
            self._first = min([(at, tag) for tag, (at, _) in self.queue.timers.items()], default=NEVER)
        return self._first

    def remove_timer(self, tag: str) -> tuple[int, int] | None:
        """Remove one of the hooks' event-time timers, if it is there. Returns its (time, hold)."""
        if self._first is not None and self._first[1] == tag:
            self._first = None
        return self.queue.timers.pop(tag, None)

    def rearm(self, before: tuple[int, int] | None) -> None:
        """Set the real timer, if it changes. A state that equals its default is none, so that its row goes."""
        if self.queue.state is not None and self._inner.constant and is_equal(self.queue.state, self._inner.new()):
            self.queue.state = None
        after = alarm(self.queue)
        if after is None and before is not None:
            self.real.cancel_timer()
        elif after is not None and after != before:
            self.real.set_timer(Timestamp(after[0]), hold=Timestamp(after[1]))
