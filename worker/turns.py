"""Turns of senders whose records hold the low watermark, at a full receiver (G8, G13).

A full receiver accepts only records that hold the low watermark. Many senders may have such a record at once: when a
window ends, all of them do. An ordered sender must first send everything that comes before its record. That may be its
whole outbox. So the receiver accepts one such sender after the other.

Invariant: everything that is accepted beyond the receiver's capacity comes from the sender whose turn it is. The turn
ends when the record that holds the watermark is committed, or when a failing hook blocks its key. The rest of its
delivery may wait for room. While there is room, no sender has a turn.

Why every such record is accepted in the end (G8):

- If the record of the turn is here, the turn ends by the receiver's own work. That work never waits for a sender.
- If the record is still to come, the turn passes to the first sender that comes twice while nothing is accepted. So a
  sender that died, moved or lost its connection stops no other sender. Two receivers never wait for one another.
- The same turn also passes on after thousands of refusals while nothing is accepted: all noted senders may be dead.
- A turn covers the smallest timestamp that its sender has stated. That record is at a finite place in the sender's
  order.
- The next turn goes to the sender that has waited longest. A sender that misses its turn waits again.

Turns do not follow the records' timestamps. All these records hold the watermark at the same value, the receiver's
bound. Records with smaller timestamps are late, so a stream of late records would keep the other senders out.

Who could break the invariant: a receiver that calls ``clear`` while it is full, or that waits for a sender before it
processes the records that it has accepted. The state here is only cached, because senders come again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.messages import Delivery

__all__ = ["MAX_WAITING", "HolderTurns"]

MAX_WAITING: Final = 1_000
"""Maximum number of senders in the queue (G13). Others are noted when they come again."""

ReceiptT = TypeVar("ReceiptT")


class HolderTurns(Generic[ReceiptT]):
    """Decides which sender a full receiver accepts."""

    def __init__(self, is_done: Callable[[ReceiptT, int], bool]) -> None:
        """
        Args:
            is_done: Whether all records of a delivery up to a timestamp are done, or blocked by a failing hook.
        """
        self._is_done = is_done
        self.sender = ""
        """The sender whose turn it is. Empty: no turn."""
        self._until: int = MIN_TIMESTAMP
        """The turn is for records up to this timestamp."""
        self.holding: ReceiptT | None = None
        """The receipt of the delivery that contains the record."""
        self._events = 0
        """Counts the turns that began, and the deliveries that were accepted at a full receiver."""
        self._refused = 0
        """Deliveries refused since the last event. If they exceed all that is noted, the noted senders may be dead."""
        self._waiting: dict[str, int] = {}
        """Refused senders in the order of their first refusal, each with ``_events`` at its last refusal."""

    def choose(self, delivery: Delivery, fresh: Sequence[int], bound: int) -> tuple[bool, Sequence[int]]:
        """Decide which records of a delivery are accepted although the receiver is full.

        For an ordered sender the answer is all or nothing, and includes what comes before its record.

        Args:
            delivery: The delivery that has arrived.
            fresh: The indexes of its records that are no copies.
            bound: A timestamp. Records at or below it hold the watermark.

        Returns:
            Two values. First, whether the sender has a turn: then the caller must call :meth:`entered`. Second, the
            indexes of the fresh records for which there is no room.
        """
        order, sender = delivery.order, delivery.sender.name
        if order is None:
            ahead = [index for index in fresh if delivery.timestamps[index] > bound]
            if len(ahead) == len(fresh):
                return False, ahead
            pending = min(delivery.timestamps[index] for index in fresh)
        else:
            ahead, pending = [], order.pending
            if pending > bound:
                self.leave(sender)
                return False, fresh
        return (True, ahead) if self.may_enter(sender, pending) else (False, fresh)

    def may_enter(self, sender: str, pending: int) -> bool:
        """Whether a delivery is accepted although the receiver is full.

        Args:
            sender: The name of its sender.
            pending: The smallest timestamp of it and of everything that waits behind it at its sender. It holds the
                watermark.
        """
        if self.holding is not None and self._is_done(self.holding, self._until):
            self._pass_on()
        if self.sender != sender:
            self._refused += 1
            again = self._waiting.get(sender) == self._events or self._refused > 2 * MAX_WAITING
            stands_still = self.holding is None and again
            if self.sender and not stands_still:
                self._note(sender)
                return False
            self._begin(sender)
        if self.holding is None:
            self._until = max(self._until, pending)
        return True

    def entered(self, sender: str, least: int, receipt: ReceiptT | None) -> None:
        """A delivery was accepted by ``may_enter``.

        Args:
            sender: The name of its sender.
            least: The smallest timestamp of its records.
            receipt: Identifies its records that hold the watermark until they are done. None: they were all copies.
        """
        self._happened()
        if self.sender != sender or self.holding is not None or least > self._until:
            return
        self.holding = receipt
        if receipt is None:
            self._pass_on()

    def leave(self, sender: str) -> None:
        """The sender has no record that holds the watermark, or sends nothing any more: end its turn."""
        self._waiting.pop(sender, None)
        if self.sender == sender and self.holding is None:
            self._pass_on()

    def clear(self) -> None:
        """There is room: no sender needs a turn."""
        if self.sender:
            self.sender, self.holding = "", None
            self._waiting.clear()

    def _note(self, sender: str) -> None:
        if sender in self._waiting or len(self._waiting) < MAX_WAITING:
            self._waiting[sender] = self._events

    def _happened(self) -> None:
        self._events += 1
        self._refused = 0

    def _pass_on(self) -> None:
        self._begin(next(iter(self._waiting), ""))

    def _begin(self, sender: str) -> None:
        self._waiting.pop(sender, None)
        self._happened()
        self.sender, self._until, self.holding = sender, MIN_TIMESTAMP, None
