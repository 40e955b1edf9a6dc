"""The duplicate check as a receiver goes through it (section 6.1.1): what an interval and a stream log share.

A delivery is judged by the dedup; where that needs to know whether a sequence lives, or to read id
segments, the delivery waits here for the answer, and those of the same sending interval behind it (G15).
What comes of it goes to ``_admit``, the subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from millwheel.core.limits import MAX_DELIVERED_BYTES, MAX_KEY_BYTES
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import CorruptValueError, PartId
from millwheel.worker.arrivals import Admission, ArrivalOrder, WaitingBytes
from millwheel.worker.dedup import Dedup, Outcome, Verdict
from millwheel.worker.heard import HeardWatermarks
from millwheel.worker.messages import (
    Acknowledge,
    CheckSequence,
    Delivery,
    Instruction,
    PartsMissing,
    PartsRead,
    ReadSegments,
    SenderWatermarks,
    SequenceChecked,
    WriteParts,
)

__all__ = ["SEGMENT_PART", "JudgedState", "Judging", "JudgingConfig", "column_problem", "refusal"]

SEGMENT_PART: Final = "segment"
"""The kind of base part that holds a stored id segment, or its filter."""

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_FULL: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED: Final = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER

_UNCHECKED: Final = 64
"""Deliveries that wait while their sequence is looked up; senders may repeat theirs for as long as that takes (G13)."""

_SEGMENT_NUMBERS: Final = 1 << 40
"""WriteParts numbers of id segments start here, apart from those of checkpoints."""


class JudgingConfig(Protocol):
    """What the check needs to know of its owner."""

    @property
    def journal(self) -> str: ...
    @property
    def sequencer(self) -> int: ...


class JudgedState(Protocol):
    """The soft state that the check works on."""

    dedup: Dedup
    committed: int
    segments: dict[str, tuple[PartId, ...]]
    """Stored id segments of the dedup, by name."""
    slack: Mapping[str, int]
    """By sending injector: how far behind its watermark the ids of late records are kept (6.1.1)."""

    @property
    def config(self) -> JudgingConfig: ...


def refusal(delivery: Delivery, why: str, indexes: Sequence[int] | None = None) -> Acknowledge:
    """Have the sender send the records ``indexes`` (None: all) again later."""
    if indexes is None:
        # Of a sender that keeps an order no index is named: it goes on from this delivery.
        indexes = range(len(delivery.keys)) if delivery.order is None else ()
    return Acknowledge(delivery, _FULL, indexes, why)


def column_problem(delivery: Delivery) -> str | None:
    """Why the columns can never be taken as they are: unequal, or over a limit."""
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


class Judging(ABC):
    """Judges deliveries, and keeps those that wait for an answer. One per owner."""

    def __init__(self, judged: JudgedState, waiting_bytes: int, foreign: Mapping[str, str] | None = None) -> None:
        """
        Args:
            judged: The soft state that the check works on.
            waiting_bytes: Bytes of the deliveries that wait for look-ups, at most (G13).
            foreign: Stored id segments whose parts are not in the owner's journal but in the one it names.
        """
        self._judged = judged
        self._waiting = WaitingBytes(waiting_bytes)
        self._arrivals = ArrivalOrder(self._take_in, self._waiting)
        self._foreign: Mapping[str, str] = {} if foreign is None else foreign
        self._elsewhere: Counter[PartId] = Counter()
        """Parts of other journals that are being read."""
        self._duplicates = 0
        self._unchecked: dict[str, list[Delivery]] = {}
        """Deliveries of sequences that are being looked up."""
        self._unsure: list[tuple[Delivery, Verdict]] = []
        """Deliveries with Bloom filter hits, whose segments are being read."""
        self._segment_writes: dict[int, tuple[str, tuple[PartId, ...]]] = {}
        self._next_write = _SEGMENT_NUMBERS
        self._early = HeardWatermarks()
        """Heard before there was anything to collect by it."""
        self._ended: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        """Origins of injector processes, and queries, that are over."""

    @abstractmethod
    def _admit(
        self,
        delivery: Delivery,
        verdict: Verdict | None,
        fresh: Sequence[int],
        waiting: Sequence[int],
        out: list[Instruction],
    ) -> Admission:
        """Take the fresh records in, or abandon and refuse them; refuse those that wait for a copy; ACK the rest.

        A delivery that has an order is taken, but for copies, or refused as a whole.
        """

    def _take_in(self, delivery: Delivery, out: list[Instruction]) -> Admission:
        """Take in a delivery whose turn it is."""
        return self._judge(delivery, out)

    def _answer_taken(
        self, delivery: Delivery, fresh: Sequence[int], excluded: Sequence[int], why: str, out: list[Instruction]
    ) -> None:
        """Answer for what needs no commit. ``excluded`` wait for copies, ``fresh`` is taken in, the rest is committed.

        The sender hears at once of what is committed: else it holds its watermark until the rest is, too, and the rest
        may wait for that watermark (G8).
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
        """Duplicates since the last call, for the commit's counts."""
        count, self._duplicates = self._duplicates, 0
        return count

    def _judge(self, delivery: Delivery, out: list[Instruction]) -> Admission:
        verdict = self._judged.dedup.check(delivery.ids, delivery.keys, delivery.timestamps, delivery.sender)
        if verdict.outcome is Outcome.JUDGED:
            if verdict.all_fresh:
                return self._admit(delivery, verdict, range(verdict.size), (), out)
            if verdict.unsure:
                if not self._waiting.enter(delivery):
                    self._judged.dedup.abandon(verdict)
                    out.append(refusal(delivery, "too much waits for stored ids to be read"))
                    return Admission.REFUSED
                self._unsure.append((delivery, verdict))
                out.extend(self._read_segments(verdict))
                return Admission.WAITS
            self._duplicates += len(verdict.duplicates)
            return self._admit(delivery, verdict, verdict.fresh, verdict.waiting, out)
        if verdict.outcome is Outcome.REFUSED_SEQUENCER:
            why = f"sequencer {delivery.sender.sequencer} has a successor"
            out.append(Acknowledge(delivery, _REFUSED, (), why))
            return Admission.REFUSED
        if verdict.outcome is Outcome.SEND_AGAIN:
            out.append(refusal(delivery, "too old to tell from a duplicate: send it again as it now stands"))
            return Admission.REFUSED
        sequence = getattr(delivery.ids, "sequence", "")
        waiting = self._unchecked.get(sequence, [])
        if len(waiting) >= _UNCHECKED or not self._waiting.enter(delivery):
            out.append(refusal(delivery, f"whether sequence {sequence} lives is still being looked up"))
            return Admission.REFUSED
        waiting.append(delivery)
        if len(waiting) == 1:
            self._unchecked[sequence] = waiting
            out.append(CheckSequence(sequence))
        return Admission.WAITS

    # Sequences.

    def sequence_checked(self, event: SequenceChecked) -> list[Instruction]:
        """The sequence lives, or is retired: judge what waited for the answer."""
        waiting = self._unchecked.pop(event.sequence, [])
        out: list[Instruction] = []
        if event.alive:
            self._judged.dedup.admit(event.sequence)
        else:
            self._judged.dedup.retire(event.sequence)
            self._arrivals.forget([event.sequence])
        for delivery in waiting:
            self._waiting.leave(delivery)
            admission = Admission.REFUSED
            if event.alive:
                admission = self._judge(delivery, out)
            else:
                out.append(Acknowledge(delivery, _REFUSED, (), f"sequence {event.sequence} is retired"))
            self._arrivals.settled(delivery, admission, out)
        return out

    def retire(self, sequences: Iterable[str]) -> None:
        """Parents' journals under which no child sends any more: what is known of their positions may go (G13)."""
        for sequence in sequences:
            self._judged.dedup.retire(sequence)
            self._arrivals.forget([sequence])

    def end(self, injectors: frozenset[str], queries: frozenset[str]) -> None:
        """These are over by an operator's word: what is known of their records may go (G13)."""
        self._ended = injectors, queries
        self._forget_ended()

    def _forget_ended(self) -> None:
        injectors, queries = self._ended
        for origin in injectors:
            self._judged.dedup.retire_injector(origin)
        for query in queries:
            self._judged.dedup.retire_query(query)

    # Opaque ids: segments and their collection.

    def _read_segments(self, verdict: Verdict) -> list[Instruction]:
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

    def segments_read(self, event: PartsRead) -> list[Instruction]:
        """Segments have been read: judge the records that hit their filters."""
        self._have_read(event.blobs)
        blobs = {part.name.removeprefix(f"{SEGMENT_PART}/ids/"): blob for part, blob in event.blobs.items()}
        return self._resolve(blobs, lambda verdict: verdict.segments <= blobs.keys())

    def segments_missing(self, event: PartsMissing) -> list[Instruction]:
        """Segments could not be read. Were they collected meanwhile, what hit their filters is judged anew when it is
        sent again; CorruptValueError if the store has lost what is relied on."""
        self._have_read(event.parts)
        names = {part.name.removeprefix(f"{SEGMENT_PART}/ids/") for part in event.parts}
        if names <= self._judged.segments.keys():
            raise CorruptValueError(event.where, event.why)
        return self._resolve({}, lambda verdict: verdict.segments == names)

    def _resolve(self, blobs: Mapping[str, bytes], concerned: Callable[[Verdict], bool]) -> list[Instruction]:
        """Judge the unsure records of the verdicts that are concerned, and take their deliveries in."""
        out: list[Instruction] = []
        still: list[tuple[Delivery, Verdict]] = []
        resolved: list[tuple[Delivery, Verdict, list[int], Sequence[int]]] = []
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
                # Whether these are copies is not known: nothing behind them may be taken before it is.
                self._judged.dedup.abandon(verdict, fresh)
                out.append(refusal(delivery, "whether some records are copies is not known any more"))
                admission = Admission.REFUSED
            else:
                admission = self._admit(delivery, verdict, fresh, [*verdict.waiting, *again], out)
            self._arrivals.settled(delivery, admission, out)
        return out

    def collect_later(self, event: SenderWatermarks) -> None:
        """The same as ``collect``, before there is anything to collect; ``collect_early`` catches up."""
        self._early.add(event)

    def collect_early(self) -> None:
        """What has been committed is known now: collect by what was heard before."""
        self.collect(self._early.update())
        self._early = HeardWatermarks()
        self._forget_ended()

    def collect(self, event: SenderWatermarks) -> None:
        """Broadcast values let ids go that nobody will send again."""
        for computation, watermark in event.values.items():
            slack = self._judged.slack.get(computation, 0)
            self._judged.dedup.advance(computation, watermark, slack, event.sequencers.get(computation, ()))

    def seal_segments(self) -> list[Instruction]:
        """Hand full id segments to the store; call it when a commit is acknowledged."""
        out: list[Instruction] = []
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
        """A segment is stored: from now on its filter stands for it in memory."""
        if number in self._segment_writes:
            name, parts = self._segment_writes.pop(number)
            self._judged.segments[name] = parts
            self._judged.dedup.segment_stored(name)
