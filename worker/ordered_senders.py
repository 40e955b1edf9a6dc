"""Senders whose deliveries come in order: those that begin, those that wait for a look-up, and those that end (G15)."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Final

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.lookups import Admission, WaitingBytes
from millwheel.worker.messages import AnswerDelivery, Delivery, OwnerEffect

__all__ = ["OrderedSender", "OrderedSenders", "out_of_order"]

MAX_SENDERS: Final = 10_000
"""Maximum number of senders that are remembered. A forgotten sender has to start again (G13)."""


class OrderedSender:
    """The state of one sending interval. ``last`` is the number that the next delivery must name as predecessor.

    Invariant: ``last`` is the number of the last delivery in ``waiting``, or ``taken`` if none waits. Exception: it is
    0 after the sender started again and was refused, while deliveries of its earlier attempt still wait.
    """

    __slots__ = ("last", "retired", "sequencer", "taken", "waiting")

    def __init__(self) -> None:
        self.sequencer = 0
        self.retired = False
        """Whether the sender is retired. A retired sender is dropped when none of its deliveries waits."""
        self.last = 0
        self.taken = 0
        """The newest number that was accepted. The deliveries in ``waiting`` follow it."""
        self.waiting: deque[Delivery] = deque()
        """The first delivery has a pending look-up. The others wait behind it."""


class OrderedSenders:
    """The senders that keep an order, and their deliveries that wait. ``ArrivalOrder`` takes the deliveries that come.

    A sender is dropped if none of its deliveries was accepted and none waits. So a late, refused delivery of a retired
    sender leaves no state behind.
    """

    def __init__(
        self, admit: Callable[[Delivery, list[OwnerEffect]], Admission], room: WaitingBytes | None = None
    ) -> None:
        """
        Args:
            admit: Performs the admission of the delivery that is next in order.
            room: Counts the bytes of the waiting deliveries. None: there is no limit.
        """
        self._admit = admit
        self._room = WaitingBytes() if room is None else room
        self.senders: OrderedDict[str, OrderedSender] = OrderedDict()
        """In order of the last delivery received, the most recent last."""

    def __len__(self) -> int:
        return len(self.senders)

    def _begun(self, sender: OrderedSender | None, delivery: Delivery) -> OrderedSender | None:
        """The sender's state, reset to start with this delivery. None if the delivery starts nothing or is outdated."""
        order = delivery.order
        assert order is not None
        number = delivery.sender.sequencer, order.number
        if order.after or (sender is not None and number <= (sender.sequencer, sender.last)):
            return None
        if sender is None:
            self._make_room()
            sender = self.senders[delivery.sender.name] = OrderedSender()
        sender.sequencer = delivery.sender.sequencer
        sender.last = sender.taken = 0
        return sender

    def _make_room(self) -> None:
        """Forget the sender that was silent for the longest time, if there are too many."""
        if len(self.senders) >= MAX_SENDERS:
            oldest = next((name for name, one in self.senders.items() if not one.waiting), None)
            if oldest is not None:
                del self.senders[oldest]

    def _refuse_behind(self, sender: OrderedSender, out: list[OwnerEffect]) -> None:
        """Refuse the deliveries that wait behind the first one. The sender starts again, so it repeats them."""
        while len(sender.waiting) > 1:
            refused = sender.waiting.pop()
            self._room.leave(refused)
            out.append(out_of_order(refused))

    def settled(self, delivery: Delivery, admission: Admission, out: list[OwnerEffect]) -> None:
        """The look-up for a delivery has ended with ``admission``: continue with the deliveries behind it."""
        if delivery.order is None or admission is Admission.WAITS:
            return
        name = delivery.sender.name
        sender = self.senders.get(name)
        if sender is None or not sender.waiting or sender.waiting[0] is not delivery:
            return
        self._room.leave(sender.waiting.popleft())
        if admission is Admission.TAKEN and delivery.sender.sequencer == sender.sequencer:
            sender.taken = delivery.order.number
        if self._take_waiting(sender, out):
            sender.last = sender.taken
            self._drop_if_idle(name, sender)

    def _take_waiting(self, sender: OrderedSender, out: list[OwnerEffect]) -> bool:
        """Process the deliveries that waited behind another. Returns whether none waits any more.

        ``sender.last`` stays the number of the last waiting delivery.
        """
        while sender.waiting:
            following = sender.waiting[0]
            assert following.order is not None
            if following.order.after not in (0, sender.taken):
                out.append(out_of_order(following))
            else:
                admission = self._admit(following, out)
                if admission is Admission.WAITS:
                    return False
                if admission is Admission.TAKEN:
                    sender.taken = following.order.number
            self._room.leave(sender.waiting.popleft())
        return True

    def _drop_if_idle(self, name: str, sender: OrderedSender) -> None:
        """Forget a sender without waiting deliveries, if it is retired or none of its deliveries was accepted."""
        if not sender.waiting and (sender.retired or not sender.taken):
            del self.senders[name]

    def forget(self, names: Iterable[str]) -> None:
        """These senders are retired: drop their state (G13)."""
        for name in names:
            self._room.forget(name)
            sender = self.senders.get(name)
            if sender is not None:
                sender.retired = True
                if not sender.waiting:
                    del self.senders[name]


def out_of_order(delivery: Delivery) -> AnswerDelivery:
    """The refusal of a delivery that does not follow what was accepted here."""
    outcome = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER
    return AnswerDelivery(
        delivery, outcome, (), "what comes before it is not known here yet, so the sender begins with its oldest"
    )
