"""Taking deliveries in: limits, the duplicate check, and the bounds of the intake (sections 6.1.1, 4.1; G13)."""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.core.limits import MAX_KEY_BYTES, MAX_VALUE_BYTES
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Outcome, Verdict
from millwheel.worker.interval.checkpoint import SEGMENT_PART
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import (
    Acknowledge,
    CheckSequence,
    Delivery,
    Instruction,
    PartsRead,
    ReadSegments,
    SenderWatermarks,
    SequenceChecked,
    WriteParts,
)

__all__ = ["Receiving"]

_ACKED = DeliveryOutcome.DELIVERY_OUTCOME_ACKED
_FULL = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_FULL
_REFUSED = DeliveryOutcome.DELIVERY_OUTCOME_REFUSED_SEQUENCER
_INVALID = DeliveryOutcome.DELIVERY_OUTCOME_INVALID

_SEGMENT_NUMBERS = 1 << 40
"""WriteParts numbers of id segments start here, apart from those of checkpoints."""


class Receiving:
    """Judges deliveries and puts what is fresh in line."""

    def __init__(self, state: IntervalState) -> None:
        self.state = state
        self._duplicates = 0
        self._unchecked: dict[str, list[Delivery]] = {}
        """Deliveries of sequences that are being looked up."""
        self._unsure: list[tuple[Delivery, Verdict]] = []
        """Deliveries with Bloom filter hits, whose segments are being read."""
        self._segment_writes: dict[int, tuple[str, tuple[PartId, ...]]] = {}
        self._next_write = _SEGMENT_NUMBERS

    def take_duplicates(self) -> int:
        """Duplicates since the last call, for the commit's counts."""
        count, self._duplicates = self._duplicates, 0
        return count

    def deliver(self, delivery: Delivery, serving: bool) -> list[Instruction]:
        """Judge a delivery. Every record of it is ACKed in the end, or answered for by another outcome."""
        if not serving:
            return [self._refuse(delivery, "the interval is being opened")]
        if (problem := self._problem(delivery)) is not None:
            return [Acknowledge(delivery, _INVALID, (), problem)]
        if not delivery.keys:
            return [Acknowledge(delivery, _ACKED)]
        if not self.state.program.options.exactly_once:
            return self._admit(delivery, None, range(len(delivery.keys)), ())
        return self._judge(delivery)

    def _problem(self, delivery: Delivery) -> str | None:
        """Why the records can never be taken as they are."""
        keys, config = delivery.keys, self.state.config
        if delivery.stream not in self.state.program.inputs:
            return f"computation {self.state.program.name!r} does not consume stream {delivery.stream!r}"
        if not len(keys) == len(delivery.values) == len(delivery.timestamps):
            return f"columns of unequal length: {len(keys)}, {len(delivery.values)} and {len(delivery.timestamps)}"
        if not keys:
            return None
        if min(keys) not in config.keys or max(keys) not in config.keys:
            return f"keys outside the interval {config.keys}: look up the interval map again"
        if (longest := max(map(len, keys))) > MAX_KEY_BYTES:
            return f"a key of {longest:,} bytes; the limit is {MAX_KEY_BYTES:,}"
        if (longest := max(map(len, delivery.values))) > MAX_VALUE_BYTES:
            return f"a value of {longest:,} bytes; the limit is {MAX_VALUE_BYTES:,}"
        return None

    @staticmethod
    def _refuse(delivery: Delivery, why: str, indexes: Sequence[int] | None = None) -> Acknowledge:
        """Have the sender send them again later."""
        return Acknowledge(delivery, _FULL, range(len(delivery.keys)) if indexes is None else indexes, why)

    def _judge(self, delivery: Delivery) -> list[Instruction]:
        verdict = self.state.dedup.check(delivery.ids, delivery.keys, delivery.timestamps, delivery.sender)
        if verdict.outcome is Outcome.JUDGED:
            if verdict.all_fresh:
                return self._admit(delivery, verdict, range(verdict.size), ())
            if verdict.unsure:
                self._unsure.append((delivery, verdict))
                return self._read_segments(verdict)
            self._duplicates += len(verdict.duplicates)
            return self._admit(delivery, verdict, verdict.fresh, verdict.waiting)
        if verdict.outcome is Outcome.REFUSED_SEQUENCER:
            return [Acknowledge(delivery, _REFUSED, (), f"sequencer {delivery.sender.sequencer} has a successor")]
        if verdict.outcome is Outcome.SEND_AGAIN:
            return [self._refuse(delivery, "too old to tell from a duplicate: send it again as it now stands")]
        sequence = getattr(delivery.ids, "sequence", "")
        waiting = self._unchecked.setdefault(sequence, [])
        waiting.append(delivery)
        return [CheckSequence(sequence)] if len(waiting) == 1 else []

    def _admit(
        self, delivery: Delivery, verdict: Verdict | None, fresh: Sequence[int], waiting: Sequence[int]
    ) -> list[Instruction]:
        out: list[Instruction] = []
        excluded = list(waiting)
        state = self.state
        intake, settings = state.intake, state.settings
        if intake.records >= settings.queue_records or intake.bytes >= settings.queue_bytes:
            bound = max(min(intake.pending.min(), max(delivery.timestamps)), state.inputs.value)
            ahead = [index for index in fresh if delivery.timestamps[index] > bound]
            if ahead:
                if verdict is not None:
                    state.dedup.abandon(verdict, ahead)
                refused = set(ahead)
                fresh = [index for index in fresh if index not in refused]
                excluded += ahead
        if excluded:
            out.append(self._refuse(delivery, "intake is full, or a copy is being processed", sorted(excluded)))
        if fresh:
            intake.admit(delivery, verdict, fresh).excluded = excluded
        else:
            out.append(Acknowledge(delivery, _ACKED, excluded))
        return out

    # Sequences.

    def sequence_checked(self, event: SequenceChecked) -> list[Instruction]:
        """The sequence lives, or is retired: judge what waited for the answer."""
        waiting = self._unchecked.pop(event.sequence, [])
        if not event.alive:
            self.state.dedup.retire(event.sequence)
            return [Acknowledge(one, _REFUSED, (), f"sequence {event.sequence} is retired") for one in waiting]
        self.state.dedup.admit(event.sequence)
        out: list[Instruction] = []
        for delivery in waiting:
            out.extend(self._judge(delivery))
        return out

    # Opaque ids: segments and their collection.

    def _read_segments(self, verdict: Verdict) -> list[Instruction]:
        parts = [self.state.segments[name][0] for name in sorted(verdict.segments)]
        return [ReadSegments(self.state.config.journal, parts)]

    def segments_read(self, event: PartsRead) -> list[Instruction]:
        """Segments have been read: judge the records that hit their filters."""
        blobs = {part.name.removeprefix(f"{SEGMENT_PART}/ids/"): blob for part, blob in event.blobs.items()}
        out: list[Instruction] = []
        still: list[tuple[Delivery, Verdict]] = []
        for delivery, verdict in self._unsure:
            if not verdict.segments <= blobs.keys():
                still.append((delivery, verdict))
                continue
            resolution = self.state.dedup.resolve(verdict, blobs)
            self._duplicates += len(verdict.duplicates) + len(resolution.duplicates)
            fresh = sorted([*verdict.fresh, *resolution.fresh])
            out.extend(self._admit(delivery, verdict, fresh, [*verdict.waiting, *resolution.again]))
        self._unsure = still
        return out

    def collect(self, event: SenderWatermarks) -> None:
        """Broadcast values let ids go that nobody will send again."""
        if not self.state.program.options.exactly_once:
            return
        for computation, watermark in event.values.items():
            slack = self.state.config.slack.get(computation, 0)
            self.state.dedup.advance(computation, watermark, slack, event.sequencers.get(computation, ()))

    def seal_segments(self) -> list[Instruction]:
        """Hand full id segments to the store; call it when a commit is acknowledged."""
        out: list[Instruction] = []
        config = self.state.config
        for segment in self.state.dedup.seal():
            commit = self.state.committed
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
            self.state.segments[name] = parts
            self.state.dedup.segment_stored(name)
