"""Turns of senders whose records hold the low watermark, at a receiver that is full (G8, G13).

A full receiver takes in what holds the low watermark, and nothing else. Many senders may have such a record at once:
when a window ends, all of them do. A sender that keeps an order sends all that comes before its record first, which
may be its whole outbox. So they come in one after the other.

Invariant: what is taken in beyond the bound is of the sender whose turn it is. The turn ends when the record that holds
the watermark is committed, or its key is blocked by a hook; the rest of its delivery may wait for room. While there is
room no sender has a turn.

Why every such record gets in (G8):

- A turn whose record is here ends by the receiver's own work. That work never waits for a sender.
- A turn whose record is still to come is lost to the first sender that comes twice before anything is taken in. So a
  sender that died, moved or is cut off stops no other, and no two receivers wait for one another.
- The same turn is lost where thousands came and nothing was taken in: those that are noted may all be dead.
- A turn covers the least record that its sender has stated. That record stands at a finite place of the sender's flow.
- The next turn is that of the sender that has waited longest. A sender that misses its turn waits again.

The order is not that of the records' timestamps. All these records hold the watermark at one and the same value, the
receiver's bound. Those with smaller timestamps are late, and a stream of late records would keep the others out.

Who may break it: a receiver that calls ``clear`` while it is full, or that waits for a sender before it works on what
it has taken in. What is known here is soft: senders come again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from millwheel.core.time import MIN_TIMESTAMP
from millwheel.worker.messages import Delivery

__all__ = ["MAX_WAITING", "HolderTurns"]

MAX_WAITING: Final = 1_000
"""Senders whose place in the queue is remembered, at most (G13). Others are noted when they come again."""

ReceiptT = TypeVar("ReceiptT")


class HolderTurns(Generic[ReceiptT]):
    """Says which sender may be taken in beyond the bound."""

    def __init__(self, is_done: Callable[[ReceiptT, int], bool]) -> None:
        """
        Args:
            is_done: Whether nothing up to a timestamp is left of a delivery but what a hook blocks.
        """
        self._is_done = is_done
        self._origin = ""
        """Whose turn it is; empty: no sender's."""
        self._until: int = MIN_TIMESTAMP
        """The turn is for a record with this timestamp, or a smaller one."""
        self._holding: ReceiptT | None = None
        """The delivery that brought the record."""
        self._events = 0
        """How often a turn has begun, or a delivery was taken in beyond the bound."""
        self._refused = 0
        """How many deliveries were refused since. Beyond all that can be noted, the queue may be of dead senders."""
        self._waiting: dict[str, int] = {}
        """Senders that were refused, in the order in which they first came, with ``_events`` when they last came."""

    def choose(self, delivery: Delivery, fresh: Sequence[int], bound: int) -> tuple[bool, Sequence[int]]:
        """What of a delivery is taken in although there is no room.

        Where its sender keeps an order that is all of it or nothing, and what comes before its record, too.

        Args:
            delivery: What has come.
            fresh: The indexes of its records that are no copies.
            bound: The receiver's bound: what is not above it holds the watermark.

        Returns:
            Whether records are taken in by a turn, which :meth:`entered` is to learn, and those for which there is no
            room.
        """
        order, origin = delivery.order, delivery.sender.origin
        if order is None:
            ahead = [index for index in fresh if delivery.timestamps[index] > bound]
            if len(ahead) == len(fresh):
                return False, ahead
            pending = min(delivery.timestamps[index] for index in fresh)
        else:
            ahead, pending = [], order.pending
            if pending > bound:
                self.leave(origin)
                return False, fresh
        return (True, ahead) if self.may_enter(origin, pending) else (False, fresh)

    def may_enter(self, origin: str, pending: int) -> bool:
        """Whether a delivery may be taken in although there is no room.

        Args:
            origin: Its sender.
            pending: The least timestamp of it and of all that waits behind it at its sender. It holds the watermark.
        """
        if self._holding is not None and self._is_done(self._holding, self._until):
            self._pass_on()
        if self._origin != origin:
            self._refused += 1
            again = self._waiting.get(origin) == self._events or self._refused > 2 * MAX_WAITING
            stands_still = self._holding is None and again
            if self._origin and not stands_still:
                self._note(origin)
                return False
            self._begin(origin)
        if self._holding is None:
            self._until = max(self._until, pending)
        return True

    def entered(self, origin: str, least: int, receipt: ReceiptT | None) -> None:
        """A delivery was taken in by ``may_enter``.

        Args:
            origin: Its sender.
            least: The least timestamp of its records.
            receipt: What stands for its records that hold the watermark, until they are done; None: it brought copies
                of them alone.
        """
        self._happened()
        if self._origin != origin or self._holding is not None or least > self._until:
            return
        self._holding = receipt
        if receipt is None:
            self._pass_on()

    def leave(self, origin: str) -> None:
        """The sender has nothing that holds the watermark, or sends nothing any more."""
        self._waiting.pop(origin, None)
        if self._origin == origin and self._holding is None:
            self._pass_on()

    def clear(self) -> None:
        """There is room: no sender needs a turn."""
        if self._origin:
            self._origin, self._holding = "", None
            self._waiting.clear()

    def _note(self, origin: str) -> None:
        if origin in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[origin] = self._events

    def _happened(self) -> None:
        self._events += 1
        self._refused = 0

    def _pass_on(self) -> None:
        self._begin(next(iter(self._waiting), ""))

    def _begin(self, origin: str) -> None:
        self._waiting.pop(origin, None)
        self._happened()
        self._origin, self._until, self._holding = origin, MIN_TIMESTAMP, None
