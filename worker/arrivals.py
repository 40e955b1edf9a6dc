"""The order in which one owner takes the deliveries of each sending interval (G15).

Invariant: of what one key has produced for a key here, that which is committed or taken is a prefix. A delivery is
taken only right after the one that its sender names. A sender that names none sends everything that it was not ACKed
for, from the oldest on, so all that came before is committed. Who may break it: docs/decisions/0020-order.md.

What is kept is soft. A receiver that forgets a sender refuses what does not begin, and the sender begins again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import Acknowledge, Delivery, Instruction

__all__ = ["Admission", "ArrivalOrder", "WaitingBytes"]

_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
_OUT_OF_ORDER: Final = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER

_WAITING: Final = 64
"""Deliveries of one sender that wait behind one that is being looked into, at most (G13)."""

_SENDERS: Final = 10_000
"""Senders that are remembered, at most: one that is forgotten begins again (G13)."""

_RECORD_BYTES: Final = 64
"""Counted for each record that waits, beside its key and value: its timestamp, its id, its places in the columns."""


class Admission(Enum):
    """What became of a delivery."""

    TAKEN = 1
    """Each of its records is in the queue, committed, or a copy of one that is."""
    REFUSED = 2
    """None of its records was taken in: it is to be sent again."""
    WAITS = 3
    """Something is being looked up, and its answer decides."""


class WaitingBytes:
    """The deliveries of one receiver that wait for a look-up, or behind one that does, with their bytes (G13).

    Invariant: ``used`` is at most ``limit``, unless one delivery waits alone. That one may have any size: a look-up
    ends, so every delivery has its turn (G8).
    """

    def __init__(self, limit: int | None = None) -> None:
        """
        Args:
            limit: Bytes that may wait together, those of keys and some for each record included; None: any number.
        """
        self.used = 0
        self._limit = limit
        self._sizes: dict[Delivery, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def enter(self, delivery: Delivery) -> bool:
        """Count a delivery; returns whether it may wait. A delivery that waits already may go on waiting."""
        if delivery in self._sizes:
            return True
        size = sum(map(len, delivery.values)) + sum(map(len, delivery.keys)) + _RECORD_BYTES * len(delivery.keys)
        if self._limit is not None and self._sizes and self.used + size > self._limit:
            return False
        self._sizes[delivery] = size
        self.used += size
        return True

    def leave(self, delivery: Delivery) -> None:
        """The delivery waits no longer; no effect if it does not wait."""
        self.used -= self._sizes.pop(delivery, 0)


class _Sender:
    """What is known of one sending interval. ``last``: the number that the next delivery has to follow.

    Invariant: ``last`` is the number of the last delivery in ``waiting``, or ``taken`` if none waits. It is 0 while all
    that waits is of an earlier sending: the sender has begun again, and that was refused.
    """

    __slots__ = ("last", "retired", "sequencer", "taken", "waiting")

    def __init__(self) -> None:
        self.sequencer = 0
        self.retired = False
        """Whether it sends nothing any more: it is dropped when nothing of it waits."""
        self.last = 0
        self.taken = 0
        """The newest number that was taken; those in ``waiting`` follow it."""
        self.waiting: deque[Delivery] = deque()
        """The first is being looked into, the others wait behind it."""


class ArrivalOrder:
    """Lets deliveries through in the order of their senders. ``admit`` is what takes one in.

    A sender of which nothing was taken and nothing waits is as good as unknown, and is not kept. So what arrives late
    of a retired sender, and is refused, leaves nothing behind.
    """

    def __init__(
        self, admit: Callable[[Delivery, list[Instruction]], Admission], room: WaitingBytes | None = None
    ) -> None:
        """
        Args:
            admit: Takes in a delivery whose turn it is.
            room: Counts the bytes of the deliveries that wait; None: they have no bound.
        """
        self._admit = admit
        self._room = WaitingBytes() if room is None else room
        self._senders: OrderedDict[str, _Sender] = OrderedDict()
        """The sender that was heard of last is the last."""

    def __len__(self) -> int:
        return len(self._senders)

    def arrived(self, delivery: Delivery, out: list[Instruction]) -> None:
        """Take a delivery in, have it wait, or refuse it."""
        order = delivery.order
        if order is None:
            self._admit(delivery, out)
            return
        origin = delivery.sender.origin
        sender = self._senders.get(origin)
        if sender is not None and delivery.sender.sequencer < sender.sequencer:
            why = f"sequencer {delivery.sender.sequencer} has a successor"
            out.append(Acknowledge(delivery, _REFUSED, (), why))
            return
        if sender is None or order.after == 0 or not self._follows(sender, delivery):
            sender = self._begun(sender, delivery)
            if sender is None:
                out.append(_out_of_order(delivery))
                return
            self._refuse_behind(sender, out)
        self._senders.move_to_end(origin)
        if sender.waiting:
            if len(sender.waiting) > _WAITING or not self._room.enter(delivery):
                out.append(Acknowledge(delivery, _FULL, (), "an earlier delivery of the sender is being looked into"))
                return
            sender.waiting.append(delivery)
            sender.last = order.number
            return
        admission = self._admit(delivery, out)
        if admission is Admission.WAITS:
            sender.waiting.append(delivery)
            sender.last = order.number
        elif admission is Admission.TAKEN:
            sender.taken = sender.last = order.number
        else:
            self._drop_if_idle(origin, sender)

    @staticmethod
    def _follows(sender: _Sender, delivery: Delivery) -> bool:
        order = delivery.order
        return order is not None and order.after == sender.last and delivery.sender.sequencer == sender.sequencer

    def _begun(self, sender: _Sender | None, delivery: Delivery) -> _Sender | None:
        """The sender, which begins with this delivery; None if it does not, or has done more since."""
        order = delivery.order
        assert order is not None
        number = delivery.sender.sequencer, order.number
        if order.after or (sender is not None and number <= (sender.sequencer, sender.last)):
            return None
        if sender is None:
            self._make_room()
            sender = self._senders[delivery.sender.origin] = _Sender()
        sender.sequencer = delivery.sender.sequencer
        sender.last = sender.taken = 0
        return sender

    def _make_room(self) -> None:
        """Forget the sender that was silent for the longest time, if there are too many."""
        if len(self._senders) >= _SENDERS:
            oldest = next((origin for origin, one in self._senders.items() if not one.waiting), None)
            if oldest is not None:
                del self._senders[oldest]

    def _refuse_behind(self, sender: _Sender, out: list[Instruction]) -> None:
        """The sender begins again: what waits behind the first delivery comes again, too."""
        while len(sender.waiting) > 1:
            refused = sender.waiting.pop()
            self._room.leave(refused)
            out.append(_out_of_order(refused))

    def settled(self, delivery: Delivery, admission: Admission, out: list[Instruction]) -> None:
        """What was looked up for a delivery is known, and this became of it: those that wait behind it go on."""
        if delivery.order is None or admission is Admission.WAITS:
            return
        origin = delivery.sender.origin
        sender = self._senders.get(origin)
        if sender is None or not sender.waiting or sender.waiting[0] is not delivery:
            return
        self._room.leave(sender.waiting.popleft())
        if admission is Admission.TAKEN and delivery.sender.sequencer == sender.sequencer:
            sender.taken = delivery.order.number
        if self._take_waiting(sender, out):
            sender.last = sender.taken
            self._drop_if_idle(origin, sender)

    def _take_waiting(self, sender: _Sender, out: list[Instruction]) -> bool:
        """Take in what waited behind a delivery; returns whether nothing waits any more.

        ``sender.last`` stays the number of the last that waits.
        """
        while sender.waiting:
            following = sender.waiting[0]
            assert following.order is not None
            if following.order.after not in (0, sender.taken):
                out.append(_out_of_order(following))
            else:
                admission = self._admit(following, out)
                if admission is Admission.WAITS:
                    return False
                if admission is Admission.TAKEN:
                    sender.taken = following.order.number
            self._room.leave(sender.waiting.popleft())
        return True

    def _drop_if_idle(self, origin: str, sender: _Sender) -> None:
        """Forget a sender of which nothing waits, if it is retired or nothing of it was taken."""
        if not sender.waiting and (sender.retired or not sender.taken):
            del self._senders[origin]

    def forget(self, origins: Iterable[str]) -> None:
        """These send nothing any more (G13)."""
        for origin in origins:
            sender = self._senders.get(origin)
            if sender is not None:
                sender.retired = True
                if not sender.waiting:
                    del self._senders[origin]


def _out_of_order(delivery: Delivery) -> Acknowledge:
    return Acknowledge(delivery, _OUT_OF_ORDER, (), "what comes before it was not taken here: begin again")
