"""Admission of deliveries: the order of each sender, and the duplicate check (6.1.1; G15). Intervals and logs share it.

Invariant: of the productions from one sending key to one key here, the accepted or committed ones are a prefix. A
delivery is accepted only right after the delivery that it names as predecessor. A delivery without a predecessor is the
sender's oldest one that is not ACKed. So everything before it is committed. docs/decisions/0020-order.md lists who
could break this.

The state of the order is only cached. A receiver that has forgotten a sender refuses every delivery that names a
predecessor. The sender then starts again from its oldest delivery that is not ACKed.

The duplicate check may have to look something up (``lookups.py``). Such a delivery waits for the answer, and later
deliveries of the same sending interval wait behind it. The owner's queue says whether there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, Protocol

from millwheel.model.limits import MAX_DELIVERED_BYTES, MAX_KEY_BYTES
from millwheel.rpc.column_keys import ColumnKeys
from millwheel.rpc.columns import bytes_of, extremes_of, longest_of
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import CheckOutcome, DeliveryVerdict, OpaqueIds
from millwheel.worker.id_segments import AdmissionState, IdSegments
from millwheel.worker.lookups import KNOWN_BEFORE, Admission, DeliveryLookups, WaitingBytes, refusal
from millwheel.worker.messages import AnswerDelivery, Delivery, OwnerEffect
from millwheel.worker.ordered_senders import OrderedSender, OrderedSenders, out_of_order
from millwheel.worker.turns import HolderTurns

__all__ = ["ArrivalOrder", "DeliveryAdmission", "ReceiverQueue", "column_problem"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

MAX_WAITING_PER_SENDER: Final = 64
"""Maximum number of deliveries of one sender that wait behind a delivery with a pending look-up (G13)."""


def column_problem(delivery: Delivery) -> str | None:
    """Why the columns can never be accepted: unequal lengths, or a value over a limit. None if they are valid."""
    keys, values = delivery.keys, delivery.values
    if not len(keys) == len(values) == len(delivery.timestamps):
        return f"columns of unequal length: {len(keys)}, {len(values)} and {len(delivery.timestamps)}"
    if not keys:
        return None
    if (longest := keys.longest if isinstance(keys, ColumnKeys) else max(map(len, keys))) > MAX_KEY_BYTES:
        return f"a key of {longest:,} bytes; the limit is {MAX_KEY_BYTES:,}"
    # Most deliveries are smaller as a whole than one value may be.
    if bytes_of(values) > MAX_DELIVERED_BYTES and (longest := longest_of(values)) > MAX_DELIVERED_BYTES:
        return f"a value of {longest:,} bytes; the limit is {MAX_DELIVERED_BYTES:,}"
    return None


class ArrivalOrder(OrderedSenders):
    """Passes deliveries on in their senders' order."""

    def arrived(self, delivery: Delivery, out: list[OwnerEffect]) -> None:
        """Accept a delivery, let it wait, or refuse it."""
        order = delivery.order
        if order is None:
            self._admit(delivery, out)
            return
        name = delivery.sender.name
        sender = self.senders.get(name)
        if sender is not None and delivery.sender.sequencer < sender.sequencer:
            why = f"sequencer {delivery.sender.sequencer} has a successor"
            out.append(AnswerDelivery(delivery, _REFUSED, (), why))
            return
        if sender is None or order.after == 0 or not self._follows(sender, delivery):
            sender = self._begun(sender, delivery)
            if sender is None:
                out.append(out_of_order(delivery))
                return
            self._refuse_behind(sender, out)
        self.senders.move_to_end(name)
        if sender.waiting:
            if len(sender.waiting) > MAX_WAITING_PER_SENDER or not self._room.enter(delivery):
                out.append(AnswerDelivery(delivery, _FULL, (), "an earlier delivery of the sender waits for a look-up"))
                return
            sender.waiting.append(delivery)
            sender.last = order.number
            return
        admission = self._admit(delivery, out)
        if self._room.refused and admission is not Admission.NO_ROOM:
            # An earlier attempt may have reserved room. This one does not need it.
            self._room.forget(name)
        if admission is Admission.WAITS:
            sender.waiting.append(delivery)
            sender.last = order.number
        elif admission is Admission.TAKEN:
            sender.taken = sender.last = order.number
        else:
            self._drop_if_idle(name, sender)

    @staticmethod
    def _follows(sender: OrderedSender, delivery: Delivery) -> bool:
        order = delivery.order
        return order is not None and order.after == sender.last and delivery.sender.sequencer == sender.sequencer


class ReceiverQueue(Protocol):
    """Where an owner's accepted records wait for their commit."""

    def has_room(self) -> bool:
        """Whether there is room for any record."""

    def bound(self, delivery: Delivery) -> tuple[int, str] | None:
        """While there is no room: a bound above which timestamps are refused, and the reason. None: all are accepted.

        Records at or below the bound hold the watermark.
        """

    def put(
        self, delivery: Delivery, verdict: DeliveryVerdict | None, fresh: Sequence[int], excluded: Sequence[int]
    ) -> Any:
        """Queue the fresh records. ``excluded`` are sent again.

        Returns:
            The receipt that the sender's turn waits for. None: no fresh record holds the watermark.
        """


class DeliveryAdmission:
    """Decides which records of deliveries are accepted. One object per owner.

    A delivery passes ``arrivals`` (the order of its sender), ``check`` (the duplicate check) and ``admit`` (room).
    """

    def __init__(
        self, ids: AdmissionState, queue: ReceiverQueue, waiting_bytes: int, is_done: Callable[[Any, int], bool]
    ) -> None:
        """
        Args:
            ids: The ids that the owner knows.
            queue: Takes the accepted records.
            waiting_bytes: Maximum bytes of all deliveries that wait for look-ups (G13).
            is_done: Whether all records of a receipt up to a timestamp are done, or blocked by a failing hook.
        """
        self._ids = ids
        self._queue = queue
        self._turns: HolderTurns[Any] = HolderTurns(is_done)
        room = WaitingBytes(waiting_bytes)
        self.arrivals = ArrivalOrder(self.check, room)
        self.segments = IdSegments(ids)
        self.lookups = DeliveryLookups(ids, self.segments, room, self)
        self.settled = self.arrivals.settled
        self._ended: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """The sender names of retired injector processes, and the retired queries."""

    def check(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        """Check a delivery that is next in its sender's order for duplicates, and admit it."""
        if not self._ids.exactly_once:
            return self.admit(delivery, None, range(len(delivery.keys)), (), out)
        if isinstance(delivery.ids, OpaqueIds) and not self._ids.expect_opaque(delivery.sender):
            return self.lookups.look_up_sequence(delivery, out)
        verdict = self._ids.dedup.check(delivery.ids, delivery.keys, delivery.timestamps, delivery.sender)
        if verdict.outcome is CheckOutcome.CHECKED:
            if verdict.all_fresh:
                return self.admit(delivery, verdict, range(verdict.size), (), out)
            if verdict.unsure:
                return self.lookups.read_segments(delivery, verdict, out)
            self._ids.duplicates += len(verdict.duplicates)
            return self.admit(delivery, verdict, verdict.fresh, verdict.waiting, out)
        if verdict.outcome is CheckOutcome.REFUSED_SEQUENCER:
            why = f"sequencer {delivery.sender.sequencer} has a successor"
            out.append(AnswerDelivery(delivery, _REFUSED, (), why))
            return Admission.REFUSED
        if verdict.outcome is CheckOutcome.SEND_AGAIN:
            out.append(refusal(delivery, "too old to distinguish from a duplicate: send it again as it now stands"))
            return Admission.REFUSED
        return self.lookups.look_up_sequence(delivery, out)

    def admit(
        self,
        delivery: Delivery,
        verdict: DeliveryVerdict | None,
        fresh: Sequence[int],
        waiting: Sequence[int],
        out: list[OwnerEffect],
    ) -> Admission:
        """Accept or refuse the fresh records, refuse the waiting ones, and ACK the rest.

        Records refused for lack of room are abandoned in the duplicate check. Waiting records are copies of records
        that are not committed yet. An ordered delivery is accepted (except for such copies) or refused as a whole.

        Records that hold the watermark are always admitted, from one sender at a time. Their sender's broadcast value
        waits for them. If the sender keeps an order, the records before them are admitted too.
        """
        excluded, why = sorted(waiting), "a copy is being processed"
        beyond = False
        if self._queue.has_room():
            if self._turns.sender:
                self._turns.clear()
        elif (limit := self._queue.bound(delivery)) is not None:
            beyond, ahead = self._turns.choose(delivery, fresh, limit[0])
            if ahead:
                why = limit[1]
                if verdict is not None:
                    self._ids.dedup.abandon(verdict, ahead)
                if delivery.order is not None:
                    out.append(refusal(delivery, why))
                    return Admission.REFUSED
                refused = set(ahead)
                fresh = [index for index in fresh if index not in refused]
                excluded = sorted([*excluded, *ahead])
        self._answer_taken(delivery, fresh, excluded, why, out)
        receipt = self._queue.put(delivery, verdict, fresh, excluded) if fresh else None
        if beyond:
            self._turns.entered(delivery.sender.name, extremes_of(delivery.timestamps)[0], receipt)
        return Admission.TAKEN

    def _answer_taken(
        self, delivery: Delivery, fresh: Sequence[int], excluded: Sequence[int], why: str, out: list[OwnerEffect]
    ) -> None:
        """Send the answer that needs no commit: ``fresh`` is accepted, ``excluded`` wait for copies, the rest is
        committed.

        The committed records are ACKed at once. Otherwise the sender holds its watermark until all records are
        committed. Some of these records may wait for that watermark, so neither would ever advance (G8).
        """
        size = len(delivery.keys)
        committed = size - len(fresh) - len(excluded)
        left = bool(fresh) or not committed
        if left and committed:
            out.append(AnswerDelivery(delivery, _ACKED, sorted([*fresh, *excluded]), KNOWN_BEFORE))
        elif left and delivery.order is not None and delivery.order.asks:
            out.append(AnswerDelivery(delivery, _ACKED, range(size)))
        if excluded:
            out.append(refusal(delivery, why, excluded))
        if not left:
            out.append(AnswerDelivery(delivery, _ACKED, excluded, KNOWN_BEFORE))

    def retire(self, names: Collection[str]) -> None:
        """Drop the state of journals under which no interval sends any more, and of removed computations (G13)."""
        for name in names:
            self._ids.dedup.retire(name)
        self.arrivals.forget(names)

    def end(self, injectors: frozenset[str], queries: frozenset[str]) -> None:
        """Drop the state of injector processes (by sender name) and queries that an operator retired (G13)."""
        self._ended = injectors, queries
        self.forget_ended()

    def forget_ended(self) -> None:
        """Repeat what ``end`` did. A recovery may have restored their state."""
        injectors, queries = self._ended
        for injector in injectors:
            self._ids.dedup.retire_injector(injector)
        for query in queries:
            self._ids.dedup.retire_query(query)
