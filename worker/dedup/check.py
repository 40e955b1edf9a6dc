"""The duplicate check of one interval: check, take, commit (6.1.1)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from millwheel.model.deliveries import DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MIN_TIMESTAMP
from millwheel.worker.dedup.batches import BatchSource
from millwheel.worker.dedup.known_sequencers import Span, group_of_life
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.results import CheckOutcome, DedupError, DeliveryVerdict, IdDelta
from millwheel.worker.dedup.segments import SegmentSealed
from millwheel.worker.dedup.tables import Tables

__all__ = ["CACHED_SEGMENTS", "SEGMENT_IDS", "DuplicateCheck", "ids_of", "join_ranges", "ranges_of"]

SEGMENT_IDS: Final = 1 << 16
"""Exact ids of one sending group that form a segment, and ids of a batch that form a base part: about 8 MB of memory,
1 MiB stored."""
CACHED_SEGMENTS: Final = 4


class DuplicateCheck:
    """The ids that one receiving interval knows, as deliveries and commits use them. ``Dedup`` adds the rest."""

    def __init__(
        self, interval: KeyInterval, journal: str, *, segment_ids: int = SEGMENT_IDS,
        cached_segments: int = CACHED_SEGMENTS,
    ) -> None:  # fmt: skip
        self.tables = Tables(interval, journal, cached_segments)
        """All ids. Only this class and :class:`Dedup` change them."""
        self.opaque_groups: Collection[str] = self.tables.opaque.keys()
        """The sending groups that have sent opaque ids. They stay, also without ids."""
        self.segment_ids = segment_ids
        self.next_delta = IdDelta()
        """The facts since the last ``take``, for the next one."""
        self._marks: dict[str, tuple[int, Sequence[int]]] = {}
        self._learned: dict[tuple[str, Span], int] = {}
        """The sequencers among those facts, the newest last. An owner that commits nothing learns many (G13)."""

    def check(
        self, ids: DeliveryIds, keys: Sequence[bytes], timestamps: Sequence[int], sender: Sender
    ) -> DeliveryVerdict:
        """Check a delivery. Its fresh and unsure records become pending.

        ``keys`` and ``timestamps`` are the records' columns. Nothing becomes pending if the outcome is not CHECKED.
        """
        if self.tables.sequencers.current.get(sender.name) != sender.sequencer and not self._accept(sender):
            return DeliveryVerdict(CheckOutcome.REFUSED_SEQUENCER, len(keys))
        if isinstance(ids, PositionIds):
            verdict = self._check_positions(ids, keys, sender)
        elif isinstance(ids, OpaqueIds):
            verdict = self._check_opaque(ids, timestamps, sender)
        else:
            verdict = DeliveryVerdict(CheckOutcome.CHECKED, len(ids.ids), ids.ids)
            verdict.source = self.tables.query(ids.query).check(ids.batch, ids.ids, verdict)
        return verdict

    def _accept(self, sender: Sender) -> bool:
        keys, known = sender.keys, self.tables.sequencers
        span: Span = sender.name if keys is None else (keys.start, keys.end)
        if known.highest(sender.group, span) > sender.sequencer:
            return False
        self._learn("" if keys is None else sender.group, span, sender.sequencer)
        known.current[sender.name] = sender.sequencer
        return True

    def _learn(self, group: str, span: Span, sequencer: int) -> None:
        if self.tables.sequencers.learn(group, span, sequencer):
            self._learned.pop((group, span), None)
            self._learned[group, span] = sequencer
            if isinstance(span, str):
                self._retire_older_sequences(span, sequencer)

    def _retire_older_sequences(self, injector: str, sequencer: int) -> None:
        """Drop the sequences that an injector process has named after its older sequencers ("stream/process/s5").

        Deliveries under an older sequencer are refused from now on, so these sequences are not needed any more. A
        sequence with pending records stays until a later call.
        """
        prefix = f"{injector.removeprefix(INJECTOR_PREFIX)}/s"
        own = [source for source in self.tables.positions.values() if source.injector == injector]
        for source in own:
            number = source.sequence.removeprefix(prefix) if source.sequence.startswith(prefix) else ""
            if number.isdigit() and int(number) < sequencer and not source.pending:
                self.retire(source.sequence)

    def _check_positions(self, ids: PositionIds, keys: Sequence[bytes], sender: Sender) -> DeliveryVerdict:
        source = self.tables.positions.get(ids.sequence)
        if source is None or not source.complete:
            if sender.keys is not None:
                return DeliveryVerdict(CheckOutcome.UNKNOWN_SEQUENCE, len(keys))
            source = self.tables.admit(ids.sequence, sender.name)
            self.next_delta.admitted.append((ids.sequence, sender.name))
            # A replay retires last. The retired one was of a former life.
            self.next_delta.retired = [sequence for sequence in self.next_delta.retired if sequence != ids.sequence]
        verdict = DeliveryVerdict(CheckOutcome.CHECKED, len(ids.positions), ids.positions, source)
        source.check(ids, keys, verdict)
        # Only the highest mark is journaled. If a mark is lost, the next owner only remembers more ids than needed.
        journaled = self._marks.get(ids.sequence, (0, ()))[0]
        if source.state_mark(ids.mark, ids.unacked) and ids.mark >= journaled:
            self._marks[ids.sequence] = (ids.mark, list(ids.unacked))
        return verdict

    def _check_opaque(self, ids: OpaqueIds, timestamps: Sequence[int], sender: Sender) -> DeliveryVerdict:
        source = self.tables.opaque_source(sender.group)
        if sender.watermark is not None and sender.watermark < source.horizon:
            return DeliveryVerdict(CheckOutcome.SEND_AGAIN, len(ids.ids))
        verdict = DeliveryVerdict(CheckOutcome.CHECKED, len(ids.ids), ids.ids, source)
        least = max(
            stamp for stamp in (sender.watermark, sender.received_watermark, MIN_TIMESTAMP) if stamp is not None
        )
        source.check(ids.ids, timestamps, least, verdict)
        return verdict

    def take(self, consumed: Iterable[tuple[DeliveryVerdict, Sequence[int] | None]]) -> IdDelta:
        """The ids of consumed records, for the entry that commits them. Indexes None: all fresh records of the
        verdict.

        Invariant: each fresh record is taken once or abandoned once. Deltas are committed in the order in which they
        were taken. The caller must ensure both.
        """
        delta, self.next_delta = self.next_delta, IdDelta()
        delta.marks, self._marks = [(sequence, *mark) for sequence, mark in self._marks.items()], {}
        delta.sequencers, self._learned = [(*place, number) for place, number in self._learned.items()], {}
        positions: dict[str, list[int]] = {}
        ranges: dict[str, list[range]] = {}
        opaque: dict[str, tuple[int, list[bytes]]] = {}
        batches: dict[tuple[str, int], list[bytes]] = {}
        for verdict, indexes in consumed:
            if indexes is not None and verdict.unsure and not verdict.unsure.keys().isdisjoint(indexes):
                raise DedupError(f"records {list(indexes)} of {verdict} are not resolved yet")
            source = verdict.source
            if verdict.range is not None:
                parts = ranges_of(verdict, indexes)
                if parts and not self._is_former(source):
                    delta.sources.append(source)
                    join_ranges(ranges.setdefault(source.sequence, []), parts)
                continue
            ids = ids_of(verdict, indexes)
            if not ids or self._is_former(source):
                continue
            delta.sources.append(source)
            if isinstance(source, PositionSource):
                positions.setdefault(source.sequence, []).extend(ids)
            elif isinstance(source, OpaqueSource):
                collect, all_ids = opaque.get(source.group) or (MIN_TIMESTAMP, [])
                all_ids.extend(ids)
                opaque[source.group] = (max(collect, verdict.collect_from), all_ids)
            elif isinstance(source, BatchSource):
                batches.setdefault((source.query, source.batch), []).extend(ids)
            else:
                raise DedupError(f"{verdict} was not checked: nothing of it can be taken")
        delta.positions = list(positions.items())
        delta.ranges = list(ranges.items())
        delta.opaque = [(group, collect, ids) for group, (collect, ids) in opaque.items()]
        delta.batches = [(query, batch, ids) for (query, batch), ids in batches.items()]
        return delta

    def committed(self, delta: IdDelta) -> None:
        """The delta's entry is in the journal: its ids are committed."""
        tables = self.tables
        former = {source.sequence if isinstance(source, PositionSource) else source.group
                  for source in delta.sources if self._is_former(source)}  # fmt: skip
        for sequence, positions in delta.positions:
            if sequence not in former:
                self._in_flight(sequence).commit(positions)
        for sequence, ranges in delta.ranges:
            if sequence not in former:
                self._in_flight(sequence).commit_ranges(ranges)
        for group, collect, ids in delta.opaque:
            if group not in former:
                tables.opaque[group].commit(collect, ids)
        for _, span, number in delta.sequencers:
            # Not the floor of a former life, when one began while this delta was in flight.
            group = group_of_life(span)
            if group and tables.sequencers.floor(group) <= number:
                tables.uncommitted_floors.discard(group)
        for query, batch, ids in delta.batches:
            tables.queries[query].commit(batch, ids)

    def _in_flight(self, sequence: str) -> PositionSource:
        source = self.tables.positions.get(sequence)
        if source is None:
            raise DedupError(f"sequence {sequence} was retired with records of it in flight")
        return source

    def _is_former(self, source: object) -> bool:
        """Whether the source belongs to a former life of its stream. Its ids need not be remembered: later copies of
        its records are below the floor."""
        if isinstance(source, PositionSource):
            return self.tables.positions.get(source.sequence) is not source and bool(source.injector)
        return isinstance(source, OpaqueSource) and self.tables.opaque.get(source.group) is not source

    def retire(self, name: str) -> None:
        """The sequence is retired, or the computation of this incarnation is removed: all its records were ACKed.

        The caller looks its later deliveries up, and refuses them. No effect while records of it are pending.
        """
        tables, delta = self.tables, self.next_delta
        source = tables.positions.get(name) or tables.opaque.get(name)
        if (source is not None and source.pending) or not tables.retire(name):
            return
        self._marks.pop(name, None)
        self._learned = {place: number for place, number in self._learned.items() if place[0] != name}
        delta.horizons = [row for row in delta.horizons if row[0] != name]
        delta.retired.append(name)

    def seal(self) -> list[SegmentSealed]:
        """Seal full segments. The caller writes their parts, then calls ``segment_stored``.

        After a long replay there may be many segments. So no part is large.
        """
        sealed: list[SegmentSealed] = []
        for source in self.tables.opaque.values():
            while len(source.exact) >= self.segment_ids:
                sealed.append(source.seal(self.tables.next_segment(), self.segment_ids))
        return sealed


def ids_of(verdict: DeliveryVerdict, indexes: Sequence[int] | None) -> Sequence[Any]:
    """The ids of those records of a verdict. Indexes None: of all fresh ones."""
    ids = verdict.ids
    if indexes is None:
        if verdict.all_fresh:
            return ids
        indexes = verdict.fresh
    elif len(indexes) == len(ids):
        return ids
    return [ids[index] for index in indexes]


def ranges_of(verdict: DeliveryVerdict, indexes: Sequence[int] | None) -> list[range]:
    """The parts of a verdict's range that have those records. Indexes None: the whole range.

    A part reaches from its first record to the next record of the delivery that is not in it. The delivery is complete,
    so no record between is due here. So the parts of all records together are the range, and no two overlap.
    """
    whole, positions = verdict.range, verdict.ids
    assert whole is not None
    count = len(positions)
    if indexes is None or len(indexes) == count:
        return [whole]
    ordered = sorted(indexes)
    if not ordered:
        return []
    if ordered[-1] - ordered[0] == len(ordered) - 1:  # the usual case: they follow one another
        firsts, lasts = ordered[:1], ordered[-1:]
    else:
        gaps = [at for at in range(1, len(ordered)) if ordered[at] != ordered[at - 1] + 1]
        firsts = [ordered[0], *(ordered[at] for at in gaps)]
        lasts = [*(ordered[at - 1] for at in gaps), ordered[-1]]
    ends = (whole.stop if last == count - 1 else positions[last + 1] for last in lasts)
    return [range(positions[first], end) for first, end in zip(firsts, ends, strict=True)]


def join_ranges(ranges: list[range], more: Iterable[range]) -> None:
    """Append ``more``. A range that begins where the one before ends is joined to it."""
    for one in more:
        if ranges and ranges[-1].stop == one.start:
            ranges[-1] = range(ranges[-1].start, one.stop)
        else:
            ranges.append(one)
