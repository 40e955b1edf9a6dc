"""Deliveries that wait: for a look-up of the duplicate check, or behind another waiting delivery (6.1.1; G13).

The duplicate check may need to know whether a sequence is alive, or what stored id segments contain. A delivery waits
here for the answer, and is then admitted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final, Protocol

from millwheel.rpc.columns import bytes_of
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError
from millwheel.worker.dedup import DeliveryVerdict
from millwheel.worker.id_segments import SEGMENT_PART, AdmissionState, IdSegments
from millwheel.worker.messages import (
    AnswerDelivery,
    CheckSequence,
    Delivery,
    OwnerEffect,
    PartsMissing,
    PartsRead,
    SequenceChecked,
)

__all__ = ["KNOWN_BEFORE", "Admission", "CheckedAdmission", "DeliveryLookups", "WaitingBytes", "refusal"]

_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

KNOWN_BEFORE: Final = "had taken effect before"
"""The message of an ACK for records that the duplicate check finds committed."""

_MAX_UNCHECKED: Final = 64
"""Maximum number of deliveries that wait for one sequence's look-up. Senders may repeat them meanwhile (G13)."""

_RECORD_BYTES: Final = 64
"""Bytes counted for each waiting record beside key and value: its timestamp, id and places in the columns."""

MAX_REFUSED_SENDERS: Final = 1_000
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


def refusal(delivery: Delivery, why: str, indexes: Sequence[int] | None = None) -> AnswerDelivery:
    """Ask the sender to send the records ``indexes`` again later. None: all records."""
    if indexes is None:
        # An ordered sender gets no indexes: it continues from this delivery as a whole.
        indexes = range(len(delivery.keys)) if delivery.order is None else ()
    return AnswerDelivery(delivery, _FULL, message=why, only=indexes)


class WaitingBytes:
    """Counts the bytes of one receiver's deliveries that wait for a look-up, or behind another waiting delivery (G13).

    Invariant: ``used`` is at most ``limit``, unless a single delivery waits alone. A single delivery may have any size:
    every look-up ends, so every delivery gets its turn (G8).

    First come, first served: room is reserved for the sender that was refused first. Others enter if they leave that
    room free. Without the reservation, small deliveries could keep a large one out for ever.

    The first sender may be gone, or need no room any more. So its reservation lapses in two cases. Both count from the
    last refusal of the first sender. Either another sender was refused and then came again, or there were more than
    ``MAX_REFUSED_SENDERS`` refusals.
    """

    def __init__(self, limit: int | None = None) -> None:
        """
        Args:
            limit: Maximum bytes that may wait together, with keys and a fixed amount per record. None: no limit.
        """
        self.used = 0
        self._limit = limit
        self._sizes: dict[Delivery, int] = {}
        self.refused: dict[str, tuple[int, int]] = {}
        """Refused senders that have not entered since, in order of their first refusal. The value: the bytes that the
        sender needs, and the number of its last refusal."""
        self._refusals = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def enter(self, delivery: Delivery) -> bool:
        """Count a delivery. Returns whether it may wait. A delivery that already waits may continue to wait."""
        if delivery in self._sizes:
            return True
        size = bytes_of(delivery.values) + sum(map(len, delivery.keys)) + _RECORD_BYTES * len(delivery.keys)
        sender = delivery.sender.name
        if self._limit is not None:
            self._drop_silent_places(sender)
            if not self._has_room(sender, size, self._limit):
                self._note(sender, size)
                return False
        self.refused.pop(sender, None)
        self._sizes[delivery] = size
        self.used += size
        return True

    def _drop_silent_places(self, sender: str) -> None:
        """Drop the first places until one whose sender is not silent. ``sender``: the sender that comes now."""
        _, before = self.refused.get(sender, (0, 0))
        while self.refused:
            first, (_, last) = next(iter(self.refused.items()))
            if first == sender or (last > before and self._refusals - last <= MAX_REFUSED_SENDERS):
                return
            del self.refused[first]

    def _has_room(self, sender: str, size: int, limit: int) -> bool:
        first = next(iter(self.refused), sender)
        kept = self.refused[first][0] if first != sender else 0
        alone = not self._sizes and not kept
        return alone or self.used + size + kept <= limit

    def _note(self, sender: str, size: int) -> None:
        self._refusals += 1
        if sender in self.refused or len(self.refused) < MAX_REFUSED_SENDERS:
            self.refused[sender] = size, self._refusals

    def leave(self, delivery: Delivery) -> None:
        """The delivery waits no longer. No effect if it did not wait."""
        self.used -= self._sizes.pop(delivery, 0)

    def forget(self, sender: str) -> None:
        """The sender needs no room, or sends nothing any more: cancel its reservation."""
        self.refused.pop(sender, None)


class CheckedAdmission(Protocol):
    """What becomes of a delivery after its look-up."""

    def check(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        """Check a delivery for duplicates, and admit it."""

    def admit(
        self,
        delivery: Delivery,
        verdict: DeliveryVerdict | None,
        fresh: Sequence[int],
        waiting: Sequence[int],
        out: list[OwnerEffect],
    ) -> Admission:
        """Admit a delivery that has been checked."""

    @property
    def settled(self) -> Callable[[Delivery, Admission, list[OwnerEffect]], None]:
        """Continues with the deliveries behind one whose look-up has ended."""

    def retire(self, names: Collection[str]) -> None:
        """Drop the state of journals and computations that are not alive any more."""


class DeliveryLookups:
    """The deliveries of one owner whose admission waits for a look-up."""

    def __init__(
        self, ids: AdmissionState, segments: IdSegments, waiting: WaitingBytes, admission: CheckedAdmission
    ) -> None:
        """
        Args:
            ids: The ids that the owner knows.
            segments: Reads their stored segments.
            waiting: Counts the bytes of the deliveries that wait.
            admission: Admits a delivery after its look-up.
        """
        self._ids = ids
        self._segments = segments
        self._waiting = waiting
        self._admission = admission
        self._unchecked: dict[str, list[Delivery]] = {}
        """Deliveries whose sequence is being looked up, by sequence."""
        self._unsure: list[tuple[Delivery, DeliveryVerdict]] = []
        """Deliveries with filter hits, whose id segments are being read."""

    def look_up_sequence(self, delivery: Delivery, out: list[OwnerEffect]) -> Admission:
        """Look up whether the delivery's sequence is alive: of opaque ids, the sender's journal."""
        sequence = getattr(delivery.ids, "sequence", delivery.sender.name)
        waiting = self._unchecked.get(sequence, [])
        if len(waiting) >= _MAX_UNCHECKED or not self._waiting.enter(delivery):
            out.append(refusal(delivery, f"whether sequence {sequence} lives is still being looked up"))
            return Admission.NO_ROOM
        waiting.append(delivery)
        if len(waiting) == 1:
            self._unchecked[sequence] = waiting
            out.append(CheckSequence(sequence))
        return Admission.WAITS

    def sequence_checked(self, event: SequenceChecked) -> list[OwnerEffect]:
        """The sequence is alive or retired: check the deliveries that waited for this answer."""
        waiting = self._unchecked.pop(event.sequence, [])
        out: list[OwnerEffect] = []
        if not event.alive:
            self._admission.retire([event.sequence])
        for delivery in waiting:
            admission = Admission.REFUSED
            if event.alive:
                self._ids.admit(delivery)
                admission = self._admission.check(delivery, out)
            else:
                out.append(AnswerDelivery(delivery, _REFUSED, (), f"sequence {event.sequence} is retired"))
            if admission is not Admission.WAITS:
                # A delivery that waits for another look-up stays counted.
                self._waiting.leave(delivery)
            self._admission.settled(delivery, admission, out)
        return out

    def read_segments(self, delivery: Delivery, verdict: DeliveryVerdict, out: list[OwnerEffect]) -> Admission:
        """Read the id segments that decide about the unsure records."""
        if not self._waiting.enter(delivery):
            self._ids.dedup.abandon(verdict)
            out.append(refusal(delivery, "too much waits for stored ids to be read"))
            return Admission.NO_ROOM
        self._unsure.append((delivery, verdict))
        out.append(self._segments.read(verdict))
        return Admission.WAITS

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
        if names <= self._ids.journal.segments.keys():
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
            resolution = self._ids.dedup.resolve(verdict, blobs)
            self._ids.duplicates += len(verdict.duplicates) + len(resolution.duplicates)
            fresh = sorted({*verdict.fresh, *resolution.fresh})
            resolved.append((delivery, verdict, fresh, resolution.again))
        self._unsure = still
        for delivery, verdict, fresh, again in resolved:
            self._waiting.leave(delivery)
            if delivery.order is not None and again:
                # These records may be copies. No later delivery of the sender may be accepted until that is known.
                self._ids.dedup.abandon(verdict, fresh)
                out.append(refusal(delivery, "whether some records are copies is not known any more"))
                admission = Admission.REFUSED
            else:
                admission = self._admission.admit(delivery, verdict, fresh, [*verdict.waiting, *again], out)
            self._admission.settled(delivery, admission, out)
        return out
