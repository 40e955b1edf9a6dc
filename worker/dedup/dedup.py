"""What an interval knows of ids: restored, stored, forgotten, and passed on to children (6.1.1, 6.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from millwheel.model.incarnation import INJECTOR_PREFIX, is_injector
from millwheel.model.keys import KeyInterval
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millwheel.store.contract import TERMINAL_SEQUENCER, PartId
from millwheel.worker.dedup.check import CACHED_SEGMENTS, SEGMENT_IDS, DuplicateCheck, ids_of, ranges_of
from millwheel.worker.dedup.known_sequencers import life_span
from millwheel.worker.dedup.opaque import OpaqueSource, Resolution
from millwheel.worker.dedup.results import DedupError, DeliveryVerdict, IdDelta
from millwheel.worker.dedup.snapshot import DedupSnapshot, dump, inherit, load

__all__ = ["Dedup"]

_NO_PARTS: Final[Mapping[PartId, bytes]] = MappingProxyType({})


class Dedup(DuplicateCheck):
    """The ids that one receiving interval knows. The package's documentation shows how to use it.

    It has many methods: each is a step of the contract in docs/decisions/0002-duplicates.md.
    """

    @classmethod
    def restore(
        cls, interval: KeyInterval, journal: str, blobs: Iterable[bytes], filters: Mapping[str, bytes],
        batch_ids: Mapping[PartId, bytes] = _NO_PARTS, *, of_parent: bool = False, segment_ids: int = SEGMENT_IDS,
        cached_segments: int = CACHED_SEGMENTS,
    ) -> Dedup:  # fmt: skip
        """Load a snapshot.

        Args:
            interval: The keys of the receiving interval.
            journal: Its journal.
            blobs: The snapshot's base parts.
            filters: The stored filter of each segment, by the segment's name.
            batch_ids: Its base parts with ids of batches.
            of_parent: The state is only for ``inherit``: no base of it is captured.
            segment_ids: Exact ids that form a segment, and ids of a batch that form a base part.
            cached_segments: Segments that stay in memory after they were read.

        Returns:
            The state at the snapshot. The caller then replays the deltas committed after it, in order.

        Raises:
            CorruptValueError: A part cannot be read; the error names the journal and the part.
        """
        dedup = cls(interval, journal, segment_ids=segment_ids, cached_segments=cached_segments)
        load(dedup.tables, blobs, filters, batch_ids, of_parent=of_parent)
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

    def resolve(self, verdict: DeliveryVerdict, blobs: Mapping[str, bytes]) -> Resolution:
        """Check a verdict's unsure records against the segments that were read. The verdict has none afterwards.

        Args:
            verdict: The verdict with unsure records.
            blobs: The segments that are still stored, by name.

        Returns:
            The result for the unsure records. Its fresh records join ``verdict.fresh``. If the caller has already taken
            the other fresh records, later calls must name indexes.
        """
        source = verdict.source
        if not verdict.unsure:
            return Resolution([], [], [])
        if not isinstance(source, OpaqueSource):
            raise DedupError("only opaque ids can be unsure")
        return source.resolve(verdict, blobs)

    def abandon(self, verdict: DeliveryVerdict, indexes: Sequence[int] | None = None) -> None:
        """Give up fresh or unsure records without an ACK: their next copy is fresh again. Indexes None: all of them."""
        if indexes is None:
            indexes = [*verdict.fresh_indexes, *verdict.unsure]
        source = verdict.source
        if verdict.range is not None:
            source.pending.settle_ranges(ranges_of(verdict, indexes))
            return
        ids = ids_of(verdict, indexes)
        for index in indexes:
            verdict.unsure.pop(index, None)
        if ids:
            source.pending.settle(ids)

    def admit(self, sequence: str) -> None:
        """The sequence is alive, so its records are accepted from now on. A linearizable read that began after the
        delivery arrived must have shown that."""
        known = self.tables.positions.get(sequence)
        if known is None or not known.complete:
            self.tables.admit(sequence, "")
            self.next_delta.admitted.append((sequence, ""))

    def journals(self) -> list[str]:
        """The senders' journals for which positions or marks are kept."""
        return [sequence for sequence, source in self.tables.positions.items() if not source.injector]

    def computations(self) -> list[str]:
        """The sending computations' incarnations of which ids or sequencers are kept."""
        tables = self.tables
        return [group for group in {**tables.opaque, **dict.fromkeys(tables.sequencers.computations)}
                if not is_injector(group)]  # fmt: skip

    def retire_injector(self, injector: str) -> None:
        """An operator retired the injector process for good: its deliveries are refused from now on.

        Sequences with pending records stay. A repeated call drops them later. Sequences that are not named after the
        process stay too, because other processes may continue them.
        """
        self._learn("", injector, TERMINAL_SEQUENCER)
        own = f"{injector.removeprefix(INJECTOR_PREFIX)}/"
        sequences = [name for name, source in self.tables.positions.items() if source.injector == injector]
        for sequence in sequences:
            if sequence.startswith(own):
                self.retire(sequence)

    def begin_life(self, group: str, floor: int, *, first: bool = False) -> None:
        """The catalog shows a life of an injector group: its sequencers are not below ``floor``.

        Invariant: what is known of a group belongs to one life of its stream (G1, G8). The floor is journaled with the
        next ids, before any id of the new life. It refuses all later deliveries of the former lives. So their ids,
        their positions and their horizon are dropped with it, here and in each replay. Who could break it: a delivery
        of the new life that arrives before this call, or a delta of the former life that is committed after it.

        ``first``: this owner knew of no life before. An earlier version may have served the present life without its
        floor. Then the journal has a sequencer of the present life. The ids stay, and the life has no floor here.
        """
        tables, delta = self.tables, self.next_delta
        if floor <= max(tables.sequencers.floor(group), tables.lives_without_floor.get(group, 0)):
            return
        if first and tables.sequencers.has_above(group, floor):
            tables.lives_without_floor[group] = floor
            return
        for sequence in tables.sequences_of(group):
            self._marks.pop(sequence, None)
        span = life_span(group)
        delta.admitted = [row for row in delta.admitted if not row[1].startswith(span)]
        delta.horizons = [row for row in delta.horizons if row[0] != group]
        tables.end_former_life(group)
        tables.uncommitted_floors.add(group)
        self._learn("", span, floor)

    def learn(self, group: str, sequencers: Iterable[tuple[KeyInterval | str, int]]) -> None:
        """The authority broadcast sequencers of a sending group, by producing keys or by injector process.

        Invariant: they are recorded before ids are forgotten up to the watermark that came with them. Otherwise
        deliveries that are still in their predecessors' buffers could arrive as fresh.
        """
        for span, sequencer in sequencers:
            if isinstance(span, KeyInterval):
                self._learn(group, (span.start, span.end), sequencer)
            else:
                self._learn("", span, sequencer)

    def advance(self, group: str, watermark: int, slack: int) -> None:
        """The authority broadcast a sending group's output watermark: forget its opaque ids below it.

        The caller has passed the sequencers behind the value to ``learn``.
        """
        horizon = watermark
        if MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
            horizon = max(MIN_TIMESTAMP, watermark - slack)
        source = self.tables.opaque.get(group) or self.tables.opaque_source(group)
        source.watermark = max(source.watermark, watermark)
        if horizon > source.horizon:
            source.horizon = horizon
            if source.runs or source.segments:
                source.forget()
            self.next_delta.horizons = [row for row in self.next_delta.horizons if row[0] != group]
            self.next_delta.horizons.append((group, watermark, horizon))

    def segment_stored(self, name: str) -> None:
        """Both parts of the segment are in the store: later snapshots rely on them."""
        for source in self.tables.opaque.values():
            source.stored(name)

    def snapshot(self) -> DedupSnapshot:
        """Everything committed, as base parts. The snapshot covers exactly the deltas committed so far.

        It seals full parts with ids of batches: these never change from now on.
        """
        return dump(self.tables, self.segment_ids)

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
