"""Admission of deliveries: the duplicate check (section 6.1.1) that an interval and a stream log share.

The check may have to look up whether a sequence is alive, or to read id segments. Such a delivery waits here for the
answer. Later deliveries of the same sending interval wait behind it (G15). The subclass receives the result in
``_admit``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from millwheel.model.limits import MAX_DELIVERED_BYTES, MAX_KEY_BYTES
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.arrivals import Admission, ArrivalOrder, WaitingBytes
from millwheel.worker.dedup import CheckOutcome, Dedup, DeliveryVerdict
from millwheel.worker.latest_watermarks import LatestWatermarks
from millwheel.worker.messages import (
    Acknowledge,
    CheckSequence,
    Delivery,
    OwnerEffect,
    PartsMissing,
    PartsRead,
    ReadSegments,
    SenderWatermarks,
    SequenceChecked,
    WriteParts,
)

__all__ = ["SEGMENT_PART", "AdmissionConfig", "AdmissionState", "DeliveryAdmission", "column_problem", "refusal"]

SEGMENT_PART: Final = "segment"
"""The kind of base part that holds a stored id segment, or its filter."""

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

_MAX_UNCHECKED: Final = 64
"""Maximum number of deliveries that wait for one sequence's look-up. Senders may repeat them meanwhile (G13)."""

_FIRST_SEGMENT_NUMBER: Final = 1 << 40
"""``WriteParts`` numbers of id segments start here, so that they differ from those of checkpoints."""


class AdmissionConfig(Protocol):
    """What the duplicate check needs to know about its owner."""

    @property
    def journal(self) -> str: ...
    @property
    def sequencer(self) -> int: ...


class AdmissionState(Protocol):
    """The cached state that the duplicate check works on."""

    dedup: Dedup
    slack: Mapping[str, int]
    """How far behind an injector's watermark the ids of its late records are kept, in microseconds (6.1.1)."""

    @property
    def config(self) -> AdmissionConfig: ...
    @property
    def committed(self) -> int: ...
    @property
    def segments(self) -> dict[str, tuple[PartId, ...]]:
        """Stored id segments of ``dedup``, by name."""


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
        self._foreign: Mapping[str, str] = {} if foreign is None else foreign
        self._elsewhere: Counter[PartId] = Counter()
        """Parts of other journals that are being read."""
        self._duplicates = 0
        self._unchecked: dict[str, list[Delivery]] = {}
        """Deliveries whose sequence is being looked up, by sequence."""
        self._unsure: list[tuple[Delivery, DeliveryVerdict]] = []
        """Deliveries with filter hits, whose id segments are being read."""
        self._segment_writes: dict[int, tuple[str, tuple[PartId, ...]]] = {}
        self._next_write = _FIRST_SEGMENT_NUMBER
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
                out.extend(self._read_segments(verdict))
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

    def _read_segments(self, verdict: DeliveryVerdict) -> list[OwnerEffect]:
        names = sorted(verdict.segments)
        parts = [self._judged.segments[name][0] for name in names]
        elsewhere = {
            part: self._foreign[name] for name, part in zip(names, parts, strict=True) if name in self._foreign
        }
        self._elsewhere.update(elsewhere.keys())
        return [ReadSegments(self._judged.config.journal, parts, elsewhere)]

    @property
    def reads_elsewhere(self) -> bool:
        """Whether parts of another journal are being read."""
        return bool(self._elsewhere)

    def _have_read(self, parts: Iterable[PartId]) -> None:
        if self._elsewhere:
            self._elsewhere -= Counter(part for part in parts if part in self._elsewhere)

    def segments_read(self, event: PartsRead) -> list[OwnerEffect]:
        """Segments have been read: check the records that hit their filters."""
        self._have_read(event.blobs)
        blobs = {part.name.removeprefix(f"{SEGMENT_PART}/ids/"): blob for part, blob in event.blobs.items()}
        return self._resolve(blobs, lambda verdict: verdict.segments <= blobs.keys())

    def segments_missing(self, event: PartsMissing) -> list[OwnerEffect]:
        """Segments could not be read. If they were collected meanwhile, refuse the records that hit their filters: the
        sender repeats them, and they are checked again.

        Raises:
            CorruptValueError: The store has lost a segment that is still in use.
        """
        self._have_read(event.parts)
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

    def seal_segments(self) -> list[OwnerEffect]:
        """Write full id segments to the store. Call this method after each acknowledged commit."""
        out: list[OwnerEffect] = []
        config = self._judged.config
        for segment in self._judged.dedup.seal():
            commit = self._judged.committed
            ids = PartId(f"{SEGMENT_PART}/ids/{segment.name}", config.sequencer, commit)
            bloom = PartId(f"{SEGMENT_PART}/filter/{segment.name}", config.sequencer, commit)
            number = self._next_write
            self._next_write += 1
            self._segment_writes[number] = (segment.name, (ids, bloom))
            out.append(WriteParts(config.journal, number, {ids: segment.ids, bloom: segment.filter}))
        return out

    def parts_written(self, number: int) -> None:
        """A segment is stored: its ids leave memory, and its filter stays."""
        if number in self._segment_writes:
            name, parts = self._segment_writes.pop(number)
            self._judged.segments[name] = parts
            self._judged.dedup.segment_stored(name)
