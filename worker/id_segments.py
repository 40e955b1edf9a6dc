"""The stored ids of one owner's duplicate check: base parts, and segments that filter hits read again (6.1.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.model.watermarks import InputWatermark
from millwheel.store.contract import PartId
from millwheel.worker.dedup import Dedup, DeliveryVerdict, PositionIds, SegmentSealed, Sender
from millwheel.worker.journal import OwnedJournal
from millwheel.worker.messages import Delivery, OwnerEffect, ReadSegments, WriteParts

__all__ = ["SEGMENT_PART", "AdmissionState", "IdSegments"]


SEGMENT_PART: Final = "segment"
"""The kind of base part that holds a stored id segment, or its filter."""

_FIRST_SEGMENT_NUMBER: Final = 1 << 40
"""``WriteParts`` numbers of id segments start here, so that they differ from those of checkpoints."""


class AdmissionState:
    """What the duplicate check of one owner works on.

    It is the sole owner of the ids. The stored segments belong to the journal.
    """

    def __init__(
        self,
        keys: KeyInterval,
        journal: OwnedJournal,
        inputs: InputWatermark,
        slack: Mapping[str, int],
        exactly_once: bool = True,
    ) -> None:
        """``inputs`` has the broadcast watermarks of the senders. Opaque ids are forgotten by them."""
        self._inputs = inputs
        self.journal = journal
        self.dedup = Dedup(keys, journal.name)
        self.slack = slack
        """How far behind an injector's watermark the ids of its late records are kept, in microseconds (6.1.1)."""
        self.exactly_once = exactly_once
        """Whether duplicates are found (6.1.3)."""
        self.duplicates = 0
        """Duplicates that were found since the last commit."""

    def expect_opaque(self, sender: Sender) -> bool:
        """Opaque ids of a sender arrive. Returns whether they can be checked. If not, the sender must be looked up.

        Nothing is kept of a removed computation. So of a computation without ids here it is unknown whether it lives. A
        late delivery of a removed one could be a copy (G1). An injector's deliveries are refused by its sequencer.
        """
        if sender.group in self.dedup.opaque_groups:
            return True
        if sender.keys is not None:
            return False
        self._begin_opaque(sender.group)
        return True

    def admit(self, delivery: Delivery) -> None:
        """A look-up has shown that the delivery's sender lives."""
        if isinstance(delivery.ids, PositionIds):
            self.dedup.admit(delivery.ids.sequence)
        elif delivery.sender.group not in self.dedup.opaque_groups:
            self._begin_opaque(delivery.sender.group)

    def _begin_opaque(self, group: str) -> None:
        """The first opaque ids of ``group`` arrive: what was broadcast before applies to them.

        Groups without opaque ids have nothing to forget, so broadcasts do not reach ``Dedup`` before that.
        """
        self.advance(group, self._inputs.latest.get(group, MIN_TIMESTAMP))

    def advance(self, group: str, watermark: int) -> None:
        """Forget opaque ids that the senders of ``group`` cannot send again, according to its broadcast watermark."""
        self.dedup.advance(group, watermark, self.slack.get(group, 0))


class IdSegments:
    """Writes and reads the id segments of one owner."""

    def __init__(self, ids: AdmissionState) -> None:
        self._ids = ids
        self._elsewhere: Counter[PartId] = Counter()
        """Parts of other journals that are being read."""
        self._writes: dict[int, tuple[str, tuple[PartId, ...]]] = {}
        self._next_write = _FIRST_SEGMENT_NUMBER

    def read(self, verdict: DeliveryVerdict) -> ReadSegments:
        """Read the segments that decide about the unsure records of ``verdict``."""
        names = sorted(verdict.segments)
        journal = self._ids.journal
        parts, foreign = [journal.segments[name][0] for name in names], journal.foreign
        elsewhere = {part: foreign[name] for name, part in zip(names, parts, strict=True) if name in foreign}
        self._elsewhere.update(elsewhere.keys())
        return ReadSegments(journal.name, parts, elsewhere)

    @property
    def reads_elsewhere(self) -> bool:
        """Whether parts of another journal are being read."""
        return bool(self._elsewhere)

    def have_read(self, parts: Iterable[PartId]) -> None:
        """The parts have been read, or could not be read."""
        if self._elsewhere:
            self._elsewhere -= Counter(part for part in parts if part in self._elsewhere)

    def write(self, sealed: Sequence[SegmentSealed]) -> list[OwnerEffect]:
        """Write sealed segments to the store. Call this after the acknowledged commit that filled them."""
        out: list[OwnerEffect] = []
        journal = self._ids.journal
        for segment in sealed:
            ids = PartId(f"{SEGMENT_PART}/ids/{segment.name}", journal.sequencer, journal.committed)
            bloom = PartId(f"{SEGMENT_PART}/filter/{segment.name}", journal.sequencer, journal.committed)
            number = self._next_write
            self._next_write += 1
            self._writes[number] = (segment.name, (ids, bloom))
            out.append(WriteParts(journal.name, number, {ids: segment.ids, bloom: segment.filter}))
        return out

    def written(self, number: int) -> None:
        """A segment is stored: its ids leave memory, and its filter stays."""
        if number in self._writes:
            name, parts = self._writes.pop(number)
            self._ids.journal.segments[name] = parts
            self._ids.dedup.segment_stored(name)
