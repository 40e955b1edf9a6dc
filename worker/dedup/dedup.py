"""The duplicate check of one interval: check, take, commit (6.1.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from millwheel.model.deliveries import DeliveryIds, OpaqueIds, PositionIds, Sender
from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.store.contract import TERMINAL_SEQUENCER
from millwheel.worker.dedup.batches import BatchSource
from millwheel.worker.dedup.known_sequencers import Span
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.results import CheckOutcome, DedupError, DeliveryVerdict, IdDelta, Resolution
from millwheel.worker.dedup.segments import SegmentSealed
from millwheel.worker.dedup.snapshot import DedupSnapshot, dump, inherit, load
from millwheel.worker.dedup.tables import Tables

__all__ = ["Dedup"]

SEGMENT_IDS: Final = 1 << 16
"""Exact ids of one sending group that form a segment: about 8 MB of memory, 1 MiB stored."""
CACHED_SEGMENTS: Final = 4


class Dedup:
    """The ids that one receiving interval knows. The package's documentation shows how to use it.

    It has many methods: each is a step of the contract in docs/decisions/0002-duplicates.md.
    """

    def __init__(
        self, interval: KeyInterval, journal: str, *, segment_ids: int = SEGMENT_IDS,
        cached_segments: int = CACHED_SEGMENTS,
    ) -> None:  # fmt: skip
        self.tables = Tables(interval, journal, cached_segments)
        """All ids. Only this class changes them."""
        self.segment_ids = segment_ids
        self._news = IdDelta()
        self._marks: dict[str, tuple[int, Sequence[int]]] = {}

    @classmethod
    def restore(
        cls, interval: KeyInterval, journal: str, blobs: Iterable[bytes], filters: Mapping[str, bytes], *,
        segment_ids: int = SEGMENT_IDS, cached_segments: int = CACHED_SEGMENTS,
    ) -> Dedup:  # fmt: skip
        """Load a snapshot.

        Args:
            interval: The keys of the receiving interval.
            journal: Its journal.
            blobs: The snapshot's base parts.
            filters: The stored filter of each segment, by the segment's name.
            segment_ids: Exact ids that form a segment.
            cached_segments: Segments that stay in memory after they were read.

        Returns:
            The state at the snapshot. The caller then replays the deltas committed after it, in order.
        """
        dedup = cls(interval, journal, segment_ids=segment_ids, cached_segments=cached_segments)
        load(dedup.tables, blobs, filters)
        return dedup

    @classmethod
    def inherit(
        cls, interval: KeyInterval, journal: str, parents: Sequence[Dedup], *,
        segment_ids: int = SEGMENT_IDS, cached_segments: int = CACHED_SEGMENTS,
    ) -> Dedup:  # fmt: skip
        """The start of a child: of a split (one parent) or a merge. The parents are sealed, restored and replayed.

        The stored segments stay parts of the parents' journals until the child has collected them.
        """
        dedup = cls(interval, journal, segment_ids=segment_ids, cached_segments=cached_segments)
        inherit(dedup.tables, [parent.tables for parent in parents])
        return dedup

    def check(
        self, ids: DeliveryIds, keys: Sequence[bytes], timestamps: Sequence[int], sender: Sender
    ) -> DeliveryVerdict:
        """Check a delivery. Its fresh and unsure records become pending.

        ``keys`` and ``timestamps`` are the records' columns. Nothing becomes pending if the outcome is not JUDGED.
        """
        if self.tables.sequencers.current.get(sender.name) != sender.sequencer and not self._accept(sender):
            return DeliveryVerdict(CheckOutcome.REFUSED_SEQUENCER, len(keys))
        if isinstance(ids, PositionIds):
            verdict = self._check_positions(ids, keys, sender)
        elif isinstance(ids, OpaqueIds):
            verdict = self._check_opaque(ids, timestamps, sender)
        else:
            verdict = DeliveryVerdict(CheckOutcome.JUDGED, len(ids.ids))
            verdict._ids = ids.ids
            verdict._source = self.tables.query(ids.query).check(ids.batch, ids.ids, verdict)
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
            self._news.sequencers.append((group, span, sequencer))
            if isinstance(span, str):
                self._forget_drawn(span, sequencer)

    def _forget_drawn(self, origin: str, sequencer: int) -> None:
        """Drop the sequences that an injector process has named after its older sequencers ("stream/process/s5").

        Deliveries under an older sequencer are refused from now on, so these sequences are not needed any more. A
        sequence with pending records stays until a later call.
        """
        prefix = f"{origin.removeprefix(INJECTOR_PREFIX)}/s"
        own = [source for source in self.tables.positions.values() if source.origin == origin]
        for source in own:
            number = source.sequence.removeprefix(prefix) if source.sequence.startswith(prefix) else ""
            if number.isdigit() and int(number) < sequencer and not source.pending.ids:
                self.retire(source.sequence)

    def _check_positions(self, ids: PositionIds, keys: Sequence[bytes], sender: Sender) -> DeliveryVerdict:
        source = self.tables.positions.get(ids.sequence)
        if source is None or not source.complete:
            if sender.keys is not None:
                return DeliveryVerdict(CheckOutcome.UNKNOWN_SEQUENCE, len(keys))
            source = self.tables.admit(ids.sequence, sender.name)
            self._news.admitted.append((ids.sequence, sender.name))
        verdict = DeliveryVerdict(CheckOutcome.JUDGED, len(ids.positions))
        verdict._ids = ids.positions
        verdict._source = source
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
        verdict = DeliveryVerdict(CheckOutcome.JUDGED, len(ids.ids))
        verdict._ids = ids.ids
        verdict._source = source
        least = max(
            stamp for stamp in (sender.watermark, sender.received_watermark, MIN_TIMESTAMP) if stamp is not None
        )
        source.check(ids.ids, timestamps, least, verdict)
        return verdict

    def resolve(self, verdict: DeliveryVerdict, blobs: Mapping[str, bytes]) -> Resolution:
        """Check a verdict's unsure records against the segments that were read. The verdict has none afterwards.

        Args:
            verdict: The verdict with unsure records.
            blobs: The segments that are still stored, by name.

        Returns:
            The result for the unsure records. Its fresh records join ``verdict.fresh``. If the caller has already taken
            the other fresh records, later calls must name indexes.
        """
        source = verdict._source
        if not verdict.unsure:
            return Resolution([], [], [])
        if not isinstance(source, OpaqueSource):
            raise DedupError("only opaque ids can be unsure")
        return source.resolve(verdict, blobs)

    def take(self, consumed: Iterable[tuple[DeliveryVerdict, Sequence[int] | None]]) -> IdDelta:
        """The ids of consumed records, for the entry that commits them. Indexes None: all fresh records of the
        verdict.

        Invariant: each fresh record is taken once or abandoned once. Deltas are committed in the order in which they
        were taken. The caller must ensure both.
        """
        delta, self._news = self._news, IdDelta()
        delta.marks, self._marks = [(sequence, *mark) for sequence, mark in self._marks.items()], {}
        positions: dict[str, list[int]] = {}
        opaque: dict[str, tuple[int, list[bytes]]] = {}
        batches: dict[tuple[str, int], list[bytes]] = {}
        for verdict, indexes in consumed:
            if indexes is not None and verdict.unsure and not verdict.unsure.keys().isdisjoint(indexes):
                raise DedupError(f"records {list(indexes)} of {verdict} are not resolved yet")
            source, ids = verdict._source, _ids_of(verdict, indexes)
            if not ids:
                continue
            if isinstance(source, PositionSource):
                positions.setdefault(source.sequence, []).extend(ids)
            elif isinstance(source, OpaqueSource):
                collect, all_ids = opaque.get(source.group) or (MIN_TIMESTAMP, [])
                all_ids.extend(ids)
                opaque[source.group] = (max(collect, verdict._collect_from), all_ids)
            elif isinstance(source, BatchSource):
                batches.setdefault((source.query, source.batch), []).extend(ids)
            else:
                raise DedupError(f"{verdict} was not checked: nothing of it can be taken")
        delta.positions = list(positions.items())
        delta.opaque = [(group, collect, ids) for group, (collect, ids) in opaque.items()]
        delta.batches = [(query, batch, ids) for (query, batch), ids in batches.items()]
        return delta

    def committed(self, delta: IdDelta) -> None:
        """The delta's entry is in the journal: its ids are committed."""
        tables = self.tables
        for sequence, positions in delta.positions:
            source = tables.positions.get(sequence)
            if source is None:
                raise DedupError(f"sequence {sequence} was retired with records of it in flight")
            source.commit(positions)
        for group, collect, ids in delta.opaque:
            tables.opaque[group].commit(collect, ids)
        for query, batch, ids in delta.batches:
            tables.queries[query].commit(batch, ids)

    def abandon(self, verdict: DeliveryVerdict, indexes: Sequence[int] | None = None) -> None:
        """Give up fresh or unsure records without an ACK: their next copy is fresh again. Indexes None: all of them."""
        if indexes is None:
            indexes = [*verdict.fresh_indexes, *verdict.unsure]
        source, ids = verdict._source, _ids_of(verdict, indexes)
        for index in indexes:
            verdict.unsure.pop(index, None)
        if ids:
            source.pending.settle(ids)

    def admit(self, sequence: str) -> None:
        """The sequence is alive, so its records are accepted from now on. A linearizable read that began after the
        delivery arrived must have shown that."""
        self.tables.admit(sequence, "")
        self._news.admitted.append((sequence, ""))

    def retire(self, sequence: str) -> None:
        """The sequence is retired: all its records were ACKed. Later deliveries of it get UNKNOWN_SEQUENCE.

        No effect while records of the sequence are pending.
        """
        source = self.tables.positions.get(sequence)
        if source is not None and not source.pending.ids:
            del self.tables.positions[sequence]
            self._marks.pop(sequence, None)
            self._news.retired.append(sequence)

    def journals(self) -> list[str]:
        """The senders' journals for which positions or marks are kept."""
        return [sequence for sequence, source in self.tables.positions.items() if not source.origin]

    def retire_injector(self, origin: str) -> None:
        """An operator retired the injector process for good: its deliveries are refused from now on.

        Sequences with pending records stay. A repeated call drops them later. Sequences that are not named after the
        process stay too, because other processes may continue them.
        """
        self._learn("", origin, TERMINAL_SEQUENCER)
        own = f"{origin.removeprefix(INJECTOR_PREFIX)}/"
        sequences = [name for name, source in self.tables.positions.items() if source.origin == origin]
        for sequence in sequences:
            if sequence.startswith(own):
                self.retire(sequence)

    def advance(
        self, group: str, watermark: int, slack: int, sequencers: Iterable[tuple[KeyInterval | str, int]]
    ) -> None:
        """The authority broadcast a sending group's output watermark: forget its opaque ids below it.

        ``sequencers`` are the sequencers behind the value, by producing keys or by injector process. They are recorded
        first. Otherwise deliveries that are still in their predecessors' buffers could arrive as fresh.
        """
        for span, sequencer in sequencers:
            if isinstance(span, KeyInterval):
                self._learn(group, (span.start, span.end), sequencer)
            else:
                self._learn("", span, sequencer)
        horizon = watermark
        if MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
            horizon = max(MIN_TIMESTAMP, watermark - slack)
        source = self.tables.opaque.get(group) or self.tables.opaque_source(group)
        source.watermark = max(source.watermark, watermark)
        if horizon > source.horizon:
            source.horizon = horizon
            if source.runs or source.segments:
                source.forget()
            self._news.horizons = [row for row in self._news.horizons if row[0] != group]
            self._news.horizons.append((group, watermark, horizon))

    def seal(self) -> list[SegmentSealed]:
        """Seal full segments. The caller writes their parts, then calls ``segment_stored``.

        After a long replay there may be many segments. So no part is large.
        """
        sealed: list[SegmentSealed] = []
        for source in self.tables.opaque.values():
            while len(source.exact) >= self.segment_ids:
                sealed.append(source.seal(self.tables.next_segment(), self.segment_ids))
        return sealed

    def segment_stored(self, name: str) -> None:
        """Both parts of the segment are in the store: later snapshots rely on them."""
        for source in self.tables.opaque.values():
            source.stored(name)

    def snapshot(self) -> DedupSnapshot:
        """Everything committed, as base parts. The snapshot covers exactly the deltas committed so far."""
        return dump(self.tables)

    def replay(self, delta: IdDelta) -> None:
        """At takeover: apply a delta committed after the snapshot."""
        self.tables.replay(delta)

    def retire_query(self, query: str) -> None:
        """An operator retired the query: forget its ids and its completed batch.

        No effect while records of the query are pending. The fact is in no delta. So after a takeover the call is
        repeated, until a base without the query is committed.
        """
        known = self.tables.queries.get(query)
        if known is not None and not any(batch.pending.ids for batch in known.batches.values()):
            del self.tables.queries[query]


def _ids_of(verdict: DeliveryVerdict, indexes: Sequence[int] | None) -> Sequence[Any]:
    ids = verdict._ids
    if indexes is None:
        if verdict.all_fresh:
            return ids
        indexes = verdict.fresh
    elif len(indexes) == len(ids):
        return ids
    return [ids[index] for index in indexes]
