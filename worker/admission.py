"""Admission of deliveries: the order of each sender, and the duplicate check (6.1.1; G15). Intervals and logs share it.

Invariant: of the productions from one sending key to one key here, the accepted or committed ones are a prefix. A
delivery is accepted only right after the delivery that it names as predecessor. A delivery without a predecessor is the
sender's oldest one that is not ACKed. So everything before it is committed. docs/decisions/0020-order.md lists who
could break this.

The state of the order is only cached. A receiver that has forgotten a sender refuses every delivery that names a
predecessor. The sender then starts again from its oldest delivery that is not ACKed.

The duplicate check may have to look up whether a sequence is alive, or to read id segments. Such a delivery waits here
for the answer. Later deliveries of the same sending interval wait behind it. The subclass receives the result in
``_admit``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final

from millwheel.model.limits import MAX_DELIVERED_BYTES, MAX_KEY_BYTES
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import CheckOutcome, DeliveryVerdict
from millwheel.worker.id_segments import SEGMENT_PART, AdmissionState, IdSegments
from millwheel.worker.latest_watermarks import LatestWatermarks
from millwheel.worker.messages import (
    Acknowledge,
    CheckSequence,
    Delivery,
    OwnerEffect,
    PartsMissing,
    PartsRead,
    SenderWatermarks,
    SequenceChecked,
)
from millwheel.worker.waiting_bytes import WaitingBytes

__all__ = ["Admission", "ArrivalOrder", "DeliveryAdmission", "column_problem", "refusal"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
_OUT_OF_ORDER: Final = DeliveryOutcome.DELIVERY_OUTCOME_OUT_OF_ORDER

_MAX_UNCHECKED: Final = 64
"""Maximum number of deliveries that wait for one sequence's look-up. Senders may repeat them meanwhile (G13)."""

_MAX_WAITING_PER_SENDER: Final = 64
"""Maximum number of deliveries of one sender that wait behind a delivery with a pending look-up (G13)."""

_MAX_SENDERS: Final = 10_000
"""Maximum number of senders that are remembered. A forgotten sender has to start again (G13)."""


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


def refusal(delivery: Delivery, why: str, indexes: Sequence[int] | None = None) -> Acknowledge:
    """Ask the sender to send the records ``indexes`` again later. None: all records."""
    if indexes is None:
        # An ordered sender gets no indexes: it continues from this delivery as a whole.
        indexes = range(len(delivery.keys)) if delivery.order is None else ()
    return Acknowledge(delivery, _FULL, indexes, why)


def column_problem(delivery: Delivery) -> str | None:
    """Why the columns can never be accepted: unequal lengths, or a value over a limit. None if they are valid."""
    keys, values = delivery.keys, delivery.values
    if not len(keys) == len(values) == len(delivery.timestamps):
        return f"columns of unequal length: {len(keys)}, {len(values)} and {len(delivery.timestamps)}"
    if not keys:
        return None
    if (longest := max(map(len, keys))) > MAX_KEY_BYTES:
        return f"a key of {longest:,} bytes; the limit is {MAX_KEY_BYTES:,}"
    if (longest := max(map(len, values))) > MAX_DELIVERED_BYTES:
        return f"a value of {longest:,} bytes; the limit is {MAX_DELIVERED_BYTES:,}"
    return None


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
        if self._room.refused and admission is not Admission.NO_ROOM:
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


class DeliveryAdmission(ABC):
    """Checks deliveries for duplicates, and keeps those that wait for a look-up. One object per owner."""

    def __init__(self, judged: AdmissionState, waiting_bytes: int, foreign: Mapping[str, str] | None = None) -> None:
        """
        Args:
            judged: The cached state that the duplicate check works on.
            waiting_bytes: Maximum bytes of all deliveries that wait for look-ups (G13).
            foreign: Stored id segments whose parts are in another journal, with the name of that journal.
        """
        self._judged = judged
        self._waiting = WaitingBytes(waiting_bytes)
        self._arrivals = ArrivalOrder(self._take_in, self._waiting)
        self._segments = IdSegments(judged, {} if foreign is None else foreign)
        self._duplicates = 0
        self._unchecked: dict[str, list[Delivery]] = {}
        """Deliveries whose sequence is being looked up, by sequence."""
        self._unsure: list[tuple[Delivery, DeliveryVerdict]] = []
        """Deliveries with filter hits, whose id segments are being read."""
        self._early = LatestWatermarks()
        """Watermarks received before the committed ids are known."""
        self._ended: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """The sender names of retired injector processes, and the retired queries."""

    @abstractmethod
    def _admit(
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
        """

    def _take_in(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        """Process a delivery that is next in its sender's order."""
        return self._judge(delivery, out)

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
            out.append(Acknowledge(delivery, _ACKED, sorted([*fresh, *excluded])))
        elif left and delivery.order is not None and delivery.order.asks:
            out.append(Acknowledge(delivery, _ACKED, range(size)))
        if excluded:
            out.append(refusal(delivery, why, excluded))
        if not left:
            out.append(Acknowledge(delivery, _ACKED, excluded))

    def take_duplicates(self) -> int:
        """Number of duplicates since the last call, for the commit's counts."""
        count, self._duplicates = self._duplicates, 0
        return count

    def _judge(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        verdict = self._judged.dedup.check(delivery.ids, delivery.keys, delivery.timestamps, delivery.sender)
        if verdict.outcome is CheckOutcome.JUDGED:
            if verdict.all_fresh:
                return self._admit(delivery, verdict, range(verdict.size), (), out)
            if verdict.unsure:
                if not self._waiting.enter(delivery):
                    self._judged.dedup.abandon(verdict)
                    out.append(refusal(delivery, "too much waits for stored ids to be read"))
                    return Admission.NO_ROOM
                self._unsure.append((delivery, verdict))
                out.append(self._segments.read(verdict))
                return Admission.WAITS
            self._duplicates += len(verdict.duplicates)
            return self._admit(delivery, verdict, verdict.fresh, verdict.waiting, out)
        if verdict.outcome is CheckOutcome.REFUSED_SEQUENCER:
            why = f"sequencer {delivery.sender.sequencer} has a successor"
            out.append(Acknowledge(delivery, _REFUSED, (), why))
            return Admission.REFUSED
        if verdict.outcome is CheckOutcome.SEND_AGAIN:
            out.append(refusal(delivery, "too old to distinguish from a duplicate: send it again as it now stands"))
            return Admission.REFUSED
        sequence = getattr(delivery.ids, "sequence", "")
        waiting = self._unchecked.get(sequence, [])
        if len(waiting) >= _MAX_UNCHECKED or not self._waiting.enter(delivery):
            out.append(refusal(delivery, f"whether sequence {sequence} lives is still being looked up"))
            return Admission.NO_ROOM
        waiting.append(delivery)
        if len(waiting) == 1:
            self._unchecked[sequence] = waiting
            out.append(CheckSequence(sequence))
        return Admission.WAITS

    # Sequences.

    def sequence_checked(self, event: SequenceChecked) -> list[OwnerEffect]:
        """The sequence is alive or retired: check the deliveries that waited for this answer."""
        waiting = self._unchecked.pop(event.sequence, [])
        out: list[OwnerEffect] = []
        if event.alive:
            self._judged.dedup.admit(event.sequence)
        else:
            self._judged.dedup.retire(event.sequence)
            self._arrivals.forget([event.sequence])
        for delivery in waiting:
            admission = Admission.REFUSED
            if event.alive:
                admission = self._judge(delivery, out)
            else:
                out.append(Acknowledge(delivery, _REFUSED, (), f"sequence {event.sequence} is retired"))
            if admission is not Admission.WAITS:
                # A delivery that waits for another look-up stays counted.
                self._waiting.leave(delivery)
            self._arrivals.settled(delivery, admission, out)
        return out

    def retire(self, sequences: Iterable[str]) -> None:
        """Drop the state of parents' journals under which no child sends any more (G13)."""
        for sequence in sequences:
            self._judged.dedup.retire(sequence)
            self._arrivals.forget([sequence])

    def end(self, injectors: frozenset[str], queries: frozenset[str]) -> None:
        """Drop the state of injector processes (by sender name) and queries that an operator retired (G13)."""
        self._ended = injectors, queries
        self._forget_ended()

    def _forget_ended(self) -> None:
        injectors, queries = self._ended
        for origin in injectors:
            self._judged.dedup.retire_injector(origin)
        for query in queries:
            self._judged.dedup.retire_query(query)

    # Opaque ids: segments and their garbage collection.

    def segments_read(self, event: PartsRead) -> list[OwnerEffect]:
        """Segments have been read: check the records that hit their filters."""
        self._segments.have_read(event.blobs)
        blobs = {part.name.removeprefix(f"{SEGMENT_PART}/ids/"): blob for part, blob in event.blobs.items()}
        return self._resolve(blobs, lambda verdict: verdict.segments <= blobs.keys())

    def segments_missing(self, event: PartsMissing) -> list[OwnerEffect]:
        """Segments could not be read. If they were collected meanwhile, refuse the records that hit their filters: the
        sender repeats them, and they are checked again.

        Raises:
            CorruptValueError: The store has lost a segment that is still in use.
        """
        self._segments.have_read(event.parts)
        names = {part.name.removeprefix(f"{SEGMENT_PART}/ids/") for part in event.parts}
        if names <= self._judged.segments.keys():
            raise CorruptValueError(event.where, event.why)
        return self._resolve({}, lambda verdict: verdict.segments == names)

    def _resolve(self, blobs: Mapping[str, bytes], concerned: Callable[[DeliveryVerdict], bool]) -> list[OwnerEffect]:
        """Check the unsure records of the verdicts that ``concerned`` selects, and admit their deliveries."""
        out: list[OwnerEffect] = []
        still: list[tuple[Delivery, DeliveryVerdict]] = []
        resolved: list[tuple[Delivery, DeliveryVerdict, list[int], Sequence[int]]] = []
        for delivery, verdict in self._unsure:
            if not concerned(verdict):
                still.append((delivery, verdict))
                continue
            resolution = self._judged.dedup.resolve(verdict, blobs)
            self._duplicates += len(verdict.duplicates) + len(resolution.duplicates)
            fresh = sorted({*verdict.fresh, *resolution.fresh})
            resolved.append((delivery, verdict, fresh, resolution.again))
        self._unsure = still
        for delivery, verdict, fresh, again in resolved:
            self._waiting.leave(delivery)
            if delivery.order is not None and again:
                # These records may be copies. No later delivery of the sender may be accepted until that is known.
                self._judged.dedup.abandon(verdict, fresh)
                out.append(refusal(delivery, "whether some records are copies is not known any more"))
                admission = Admission.REFUSED
            else:
                admission = self._admit(delivery, verdict, fresh, [*verdict.waiting, *again], out)
            self._arrivals.settled(delivery, admission, out)
        return out

    def collect_later(self, event: SenderWatermarks) -> None:
        """Record watermarks that arrive before recovery has ended. ``collect_early`` applies them."""
        self._early.add(event)

    def collect_early(self) -> None:
        """Recovery has ended: apply the watermarks that arrived before."""
        self.collect(self._early.update())
        self._early = LatestWatermarks()
        self._forget_ended()

    def collect(self, event: SenderWatermarks) -> None:
        """Drop ids that no sender can send again, according to broadcast watermarks."""
        for computation, watermark in event.values.items():
            slack = self._judged.slack.get(computation, 0)
            self._judged.dedup.advance(computation, watermark, slack, event.sequencers.get(computation, ()))

    @property
    def reads_elsewhere(self) -> bool:
        """Whether parts of another journal are being read."""
        return self._segments.reads_elsewhere

    def seal_segments(self) -> list[OwnerEffect]:
        """Write full id segments to the store. Call this method after each acknowledged commit."""
        sealed = self._judged.dedup.seal()
        return self._segments.write(sealed) if sealed else []

    def parts_written(self, number: int) -> None:
        """Parts are stored. If they are a segment, its ids leave memory, and its filter stays."""
        self._segments.written(number)
