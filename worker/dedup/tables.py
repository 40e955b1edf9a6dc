"""The committed state of a ``Dedup``: everything that a takeover restores, and how deltas are applied to it."""

from __future__ import annotations

from millwheel.model.keys import KeyInterval
from millwheel.worker.dedup.batches import BatchQuery
from millwheel.worker.dedup.known_sequencers import SequencerMap, group_of_life, life_span
from millwheel.worker.dedup.opaque import OpaqueSource
from millwheel.worker.dedup.pieces import PositionPiece
from millwheel.worker.dedup.positions import PositionSource
from millwheel.worker.dedup.results import IdDelta
from millwheel.worker.dedup.segments import SegmentCache

__all__ = ["Tables"]


class Tables:
    """Sequences, opaque sources, queries and sequencers of one receiving interval."""

    __slots__ = ("cache", "interval", "journal", "lives_without_floor", "opaque", "positions", "queries",
                 "segment_number", "sequencers", "uncommitted_floors")  # fmt: skip

    def __init__(self, interval: KeyInterval, journal: str, cached_segments: int) -> None:
        self.interval = interval
        self.journal = journal
        self.cache = SegmentCache(cached_segments)
        self.positions: dict[str, PositionSource] = {}
        self.opaque: dict[str, OpaqueSource] = {}
        self.queries: dict[str, BatchQuery] = {}
        self.sequencers = SequencerMap()
        self.segment_number = 0
        self.uncommitted_floors: set[str] = set()
        """Injector groups whose floor is in no committed delta yet. A snapshot leaves these floors out, because a delta
        of the former life may be committed after it."""
        self.lives_without_floor: dict[str, int] = {}
        """The lives that an earlier version has served, by injector group. The ids here are theirs."""

    def sequence(self, name: str) -> PositionSource:
        """The sequence. An unknown one is created, with all keys admitted."""
        source = self.positions.get(name)
        if source is None:
            source = self.positions[name] = PositionSource(name, self.interval, [PositionPiece(self.interval)], set())
        return source

    def opaque_source(self, name: str) -> OpaqueSource:
        """The sending group's ids. An unknown group has none yet."""
        source = self.opaque.get(name)
        if source is None:
            source = self.opaque[name] = OpaqueSource(name, self.cache)
        return source

    def query(self, name: str) -> BatchQuery:
        """The query. An unknown query is created without a completed batch."""
        source = self.queries.get(name)
        if source is None:
            source = self.queries[name] = BatchQuery(name)
        return source

    def next_segment(self) -> str:
        """A name that no existing segment of this receiver has. The part's id adds its writer's sequencer."""
        self.segment_number += 1
        return f"{self.journal}/{self.segment_number}"

    def admit(self, sequence: str, injector: str) -> PositionSource:
        """Admit the sequence for all keys without a mark: nothing of it is committed for them."""
        source = self.sequence(sequence)
        source.injector = injector
        source.admit()
        return source

    def end_former_life(self, group: str) -> None:
        """Drop the opaque ids and the sequences of the injector group's former lives.

        Invariant: all ids here of a group are of one life. A record of a new life may have the id of one of a former
        life. The floor of the new life refuses each later copy of the former life's records.
        """
        self.opaque.pop(group, None)
        for name in self.sequences_of(group):
            del self.positions[name]

    def retire(self, name: str) -> bool:
        """Drop a sequence, or the ids and sequencers of a removed computation. Returns whether anything was known.

        No journal has the name of an incarnation.
        """
        sequence, ids = self.positions.pop(name, None), self.opaque.pop(name, None)
        return self.sequencers.forget(name) or sequence is not None or ids is not None

    def sequences_of(self, group: str) -> list[str]:
        """The sequences that processes of the injector group send."""
        return [name for name, source in self.positions.items() if source.injector.startswith(life_span(group))]

    def replay(self, delta: IdDelta) -> None:
        """Apply a committed delta. Sequencers come first: an id may be forgotten only once its old senders are
        refused."""
        for row in delta.sequencers:
            group = group_of_life(row[1])
            if group and row[2] >= self.sequencers.floor(group):
                self.end_former_life(group)
            self.sequencers.learn(*row)
        for sequence, injector in delta.admitted:
            self.admit(sequence, injector)
        for sequence, positions in delta.positions:
            self.sequence(sequence).remember(positions)
        for sequence, ranges in delta.ranges:
            self.sequence(sequence).remember_ranges(ranges)
        for sequence, mark, unacked in delta.marks:
            self.sequence(sequence).state_mark(mark, unacked)
        for sequence in delta.retired:
            self.retire(sequence)
        for group, watermark, horizon in delta.horizons:
            source = self.opaque_source(group)
            source.watermark = max(source.watermark, watermark)
            if horizon > source.horizon:
                # Only a higher horizon forgets, as at the owner before. An id that was committed after the horizon had
                # passed it stays until the next rise (G12).
                source.horizon = horizon
                source.forget()
        for group, collect, ids in delta.opaque:
            self.opaque_source(group).remember(collect, ids)
        for query, batch, ids in delta.batches:
            self.query(query).remember(batch, ids)
