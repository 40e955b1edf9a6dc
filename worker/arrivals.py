"""The order in which one owner takes the deliveries of each sending interval (G15).

Invariant: of what one key has produced for a key here, that which is committed or taken is a prefix. A delivery is
taken only right after the one that its sender names. A sender that names none sends everything that it was not ACKed
for, from the oldest on, so all that came before is committed. Who may break it: docs/decisions/0020-order.md.

What is kept is soft. A receiver that forgets a sender refuses what does not begin, and the sender begins again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import Acknowledge, Delivery, Instruction

__all__ = ["Admission", "ArrivalOrder"]

_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
_OUT_OF_ORDER: Final = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER

_WAITING: Final = 64
"""Deliveries of one sender that wait behind one that is being looked into, at most (G13)."""

_SENDERS: Final = 10_000
"""Senders that are remembered, at most: one that is forgotten begins again (G13)."""


class Admission(Enum):
    """What became of a delivery."""

    TAKEN = 1
    """Each of its records is in the queue, committed, or a copy of one that is."""
    REFUSED = 2
    """None of its records was taken in: it is to be sent again."""
    WAITS = 3
    """Something is being looked up, and its answer decides."""


class _Sender:
    """What is known of one sending interval. ``last``: the number that the next delivery has to follow."""

    __slots__ = ("last", "sequencer", "taken", "waiting")

    def __init__(self) -> None:
        self.sequencer = 0
        self.last = 0
        self.taken = 0
        """The newest number that was taken; those in ``waiting`` follow it."""
        self.waiting: deque[Delivery] = deque()
        """The first is being looked into, the others wait behind it."""


class ArrivalOrder:
    """Lets deliveries through in the order of their senders. ``admit`` is what takes one in."""

    def __init__(self, admit: Callable[[Delivery, list[Instruction]], Admission]) -> None:
        self._admit = admit
        self._senders: dict[str, _Sender] = {}

    def __len__(self) -> int:
        return len(self._senders)

    def arrived(self, delivery: Delivery, out: list[Instruction]) -> None:
        """Take a delivery in, have it wait, or refuse it."""
        order = delivery.order
        if order is None:
            self._admit(delivery, out)
            return
        sender = self._senders.get(delivery.sender.origin)
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
        if sender.waiting:
            if len(sender.waiting) > _WAITING:
                out.append(Acknowledge(delivery, _FULL, (), "an earlier delivery of the sender is being looked into"))
                return
            sender.waiting.append(delivery)
            sender.last = order.number
            return
        self._put(sender, delivery, out)
        if sender.waiting:
            sender.last = order.number

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
        if len(self._senders) >= _SENDERS:
            oldest = next((origin for origin, one in self._senders.items() if not one.waiting), None)
            if oldest is not None:
                del self._senders[oldest]

    @staticmethod
    def _refuse_behind(sender: _Sender, out: list[Instruction]) -> None:
        """The sender begins again: what waits behind the first delivery comes again, too."""
        while len(sender.waiting) > 1:
            out.append(_out_of_order(sender.waiting.pop()))

    def _put(self, sender: _Sender, delivery: Delivery, out: list[Instruction]) -> Admission:
        admission = self._admit(delivery, out)
        if admission is Admission.TAKEN:
            assert delivery.order is not None
            sender.taken = sender.last = delivery.order.number
        elif admission is Admission.WAITS and not sender.waiting:
            sender.waiting.append(delivery)
        return admission

    def settled(self, delivery: Delivery, admission: Admission, out: list[Instruction]) -> None:
        """What was looked up for a delivery is known, and this became of it: those that wait behind it go on."""
        if delivery.order is None or admission is Admission.WAITS:
            return
        sender = self._senders.get(delivery.sender.origin)
        if sender is None or not sender.waiting or sender.waiting[0] is not delivery:
            return
        sender.waiting.popleft()
        if admission is Admission.TAKEN and delivery.sender.sequencer == sender.sequencer:
            sender.taken = delivery.order.number
        while sender.waiting:
            following = sender.waiting[0]
            assert following.order is not None
            if following.order.after not in (0, sender.taken):
                out.append(_out_of_order(following))
            elif self._put(sender, following, out) is Admission.WAITS:
                return
            sender.waiting.popleft()
        sender.last = sender.taken

    def forget(self, origins: Iterable[str]) -> None:
        """These send nothing any more (G13)."""
        for origin in origins:
            sender = self._senders.get(origin)
            if sender is not None and not sender.waiting:
                del self._senders[origin]


def _out_of_order(delivery: Delivery) -> Acknowledge:
    return Acknowledge(delivery, _OUT_OF_ORDER, (), "what comes before it was not taken here: begin again")
