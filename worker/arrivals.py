"""The order in which one owner accepts the deliveries of each sending interval (G15).

Invariant: of the productions from one sending key to one key here, the accepted or committed ones are a prefix. A
delivery is accepted only right after the delivery that it names as predecessor. A delivery without a predecessor is the
sender's oldest one that is not ACKed. So everything before it is committed. docs/decisions/0020-order.md lists who
could break this.

The state here is only cached. A receiver that has forgotten a sender refuses every delivery that names a predecessor.
The sender then starts again from its oldest delivery that is not ACKed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.messages import Acknowledge, Delivery, OwnerEffect

__all__ = ["Admission", "ArrivalOrder", "WaitingBytes"]

_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
_OUT_OF_ORDER: Final = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER

_MAX_WAITING_PER_SENDER: Final = 64
"""Maximum number of deliveries of one sender that wait behind a delivery with a pending look-up (G13)."""

_MAX_SENDERS: Final = 10_000
"""Maximum number of senders that are remembered. A forgotten sender has to start again (G13)."""

_RECORD_BYTES: Final = 64
"""Bytes counted for each waiting record beside key and value: its timestamp, id and places in the columns."""

_MAX_REFUSED_SENDERS: Final = 1_000
"""Maximum number of refused senders whose place is remembered (G13). Another one is added at a later refusal, if there
is room then."""


class Admission(Enum):
    """The result for one delivery."""

    TAKEN = 1
    """Each of its records is queued, committed, or a copy of such a record."""
    REFUSED = 2
    """None of its records was accepted: the sender has to send it again."""
    WAITS = 3
    """A look-up is in progress, and its answer decides."""
    NO_ROOM = 4
    """Refused: the delivery needs a look-up, and there is no room in which it can wait."""


class WaitingBytes:
    """Counts the bytes of one receiver's deliveries that wait for a look-up, or behind another waiting delivery (G13).

    Invariant: ``used`` is at most ``limit``, unless a single delivery waits alone. A single delivery may have any size:
    every look-up ends, so every delivery gets its turn (G8).

    First come, first served: room is reserved for the sender that was refused first. Others enter if they leave that
    room free. Without the reservation, small deliveries could keep a large one out for ever.

    The first sender may be gone, or need no room any more. So its reservation lapses in two cases. Both count from the
    last refusal of the first sender. Either another sender was refused and then came again, or there were more than
    ``_MAX_REFUSED_SENDERS`` refusals.
    """

    def __init__(self, limit: int | None = None) -> None:
        """
        Args:
            limit: Maximum bytes that may wait together, with keys and a fixed amount per record. None: no limit.
        """
        self.used = 0
        self._limit = limit
        self._sizes: dict[Delivery, int] = {}
        self._refused: dict[str, tuple[int, int]] = {}
        """Refused senders that have not entered since, in order of their first refusal. The value: the bytes that the
        sender needs, and the number of its last refusal."""
        self._refusals = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def enter(self, delivery: Delivery) -> bool:
        """Count a delivery. Returns whether it may wait. A delivery that already waits may continue to wait."""
        if delivery in self._sizes:
            return True
        size = sum(map(len, delivery.values)) + sum(map(len, delivery.keys)) + _RECORD_BYTES * len(delivery.keys)
        origin = delivery.sender.name
        if self._limit is not None:
            self._drop_silent_places(origin)
            if not self._has_room(origin, size, self._limit):
                self._note(origin, size)
                return False
        self._refused.pop(origin, None)
        self._sizes[delivery] = size
        self.used += size
        return True

    def _drop_silent_places(self, origin: str) -> None:
        """Drop the first places until one whose sender is not silent. ``origin``: the sender that comes now."""
        _, before = self._refused.get(origin, (0, 0))
        while self._refused:
            first, (_, last) = next(iter(self._refused.items()))
            if first == origin or (last > before and self._refusals - last <= _MAX_REFUSED_SENDERS):
                return
            del self._refused[first]

    def _has_room(self, origin: str, size: int, limit: int) -> bool:
        first = next(iter(self._refused), origin)
        kept = self._refused[first][0] if first != origin else 0
        alone = not self._sizes and not kept
        return alone or self.used + size + kept <= limit

    def _note(self, origin: str, size: int) -> None:
        self._refusals += 1
        if origin in self._refused or len(self._refused) < _MAX_REFUSED_SENDERS:
            self._refused[origin] = size, self._refusals

    def leave(self, delivery: Delivery) -> None:
        """The delivery waits no longer. No effect if it did not wait."""
        self.used -= self._sizes.pop(delivery, 0)

    def forget(self, origin: str) -> None:
        """The sender needs no room, or sends nothing any more: cancel its reservation."""
        self._refused.pop(origin, None)


class _Sender:
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


class ArrivalOrder:
    """Passes deliveries on in their senders' order. ``admit`` performs the admission of one delivery.

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
        self._senders: OrderedDict[str, _Sender] = OrderedDict()
        """In order of the last delivery received, the most recent last."""

    def __len__(self) -> int:
        return len(self._senders)

    def arrived(self, delivery: Delivery, out: list[OwnerEffect]) -> None:
        """Accept a delivery, let it wait, or refuse it."""
        order = delivery.order
        if order is None:
            self._admit(delivery, out)
            return
        origin = delivery.sender.name
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
            if len(sender.waiting) > _MAX_WAITING_PER_SENDER or not self._room.enter(delivery):
                out.append(Acknowledge(delivery, _FULL, (), "an earlier delivery of the sender waits for a look-up"))
                return
            sender.waiting.append(delivery)
            sender.last = order.number
            return
        admission = self._admit(delivery, out)
        if admission is not Admission.NO_ROOM:
            # An earlier attempt may have reserved room. This one does not need it.
            self._room.forget(origin)
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
        """The sender's state, reset to start with this delivery. None if the delivery starts nothing or is outdated."""
        order = delivery.order
        assert order is not None
        number = delivery.sender.sequencer, order.number
        if order.after or (sender is not None and number <= (sender.sequencer, sender.last)):
            return None
        if sender is None:
            self._make_room()
            sender = self._senders[delivery.sender.name] = _Sender()
        sender.sequencer = delivery.sender.sequencer
        sender.last = sender.taken = 0
        return sender

    def _make_room(self) -> None:
        """Forget the sender that was silent for the longest time, if there are too many."""
        if len(self._senders) >= _MAX_SENDERS:
            oldest = next((origin for origin, one in self._senders.items() if not one.waiting), None)
            if oldest is not None:
                del self._senders[oldest]

    def _refuse_behind(self, sender: _Sender, out: list[OwnerEffect]) -> None:
        """Refuse the deliveries that wait behind the first one. The sender starts again, so it repeats them."""
        while len(sender.waiting) > 1:
            refused = sender.waiting.pop()
            self._room.leave(refused)
            out.append(_out_of_order(refused))

    def settled(self, delivery: Delivery, admission: Admission, out: list[OwnerEffect]) -> None:
        """The look-up for a delivery has ended with ``admission``: continue with the deliveries behind it."""
        if delivery.order is None or admission is Admission.WAITS:
            return
        origin = delivery.sender.name
        sender = self._senders.get(origin)
        if sender is None or not sender.waiting or sender.waiting[0] is not delivery:
            return
        self._room.leave(sender.waiting.popleft())
        if admission is Admission.TAKEN and delivery.sender.sequencer == sender.sequencer:
            sender.taken = delivery.order.number
        if self._take_waiting(sender, out):
            sender.last = sender.taken
            self._drop_if_idle(origin, sender)

    def _take_waiting(self, sender: _Sender, out: list[OwnerEffect]) -> bool:
        """Process the deliveries that waited behind another. Returns whether none waits any more.

        ``sender.last`` stays the number of the last waiting delivery.
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
        """Forget a sender without waiting deliveries, if it is retired or none of its deliveries was accepted."""
        if not sender.waiting and (sender.retired or not sender.taken):
            del self._senders[origin]

    def forget(self, origins: Iterable[str]) -> None:
        """These senders are retired: drop their state (G13)."""
        for origin in origins:
            self._room.forget(origin)
            sender = self._senders.get(origin)
            if sender is not None:
                sender.retired = True
                if not sender.waiting:
                    del self._senders[origin]


def _out_of_order(delivery: Delivery) -> Acknowledge:
    return Acknowledge(delivery, _OUT_OF_ORDER, (), "what comes before it was not taken here: begin again")
