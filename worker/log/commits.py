"""Group commit: sealing entries, and the steps after an append (sections 6.1.1, 6.1.2).

Invariant: at most one entry is between seal and acknowledgement. Senders are ACKed, and subscribers see records, only
when the entry with these records is in the journal (G1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from millwheel.rpc.packed_values import joined_values
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import IdDelta
from millwheel.worker.id_segments import IdSegments
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.cursors import CursorChanges
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogEntry, encode
from millwheel.worker.log.intake import LogChunk
from millwheel.worker.log.messages import CursorsAnswer, LettersAnswer, LogEffect
from millwheel.worker.log.retention import Retainer
from millwheel.worker.log.state import LogState
from millwheel.worker.messages import AnswerDelivery, Appended

__all__ = ["LogCommits"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED


@dataclass(slots=True)
class _Sealed:
    """The commit in flight."""

    commit: int
    chunks: list[LogChunk]
    delta: IdDelta | None
    """Its ids. None: it has no records."""
    entry: LogEntry
    changes: CursorChanges | None
    """Its changes of cursors. None: there are none."""
    checkpoint: bool
    """Whether a base is captured at this commit."""


class LogCommits:
    """Commits records, ACKs and deletions to the journal."""

    def __init__(
        self, state: LogState, segments: IdSegments, checkpoints: LogCheckpointer, subscribers: Collection[object]
    ) -> None:
        """
        Args:
            state: The log's state.
            segments: Writes full segments of ids.
            checkpoints: Captures bases.
            subscribers: Those that wait for the watermark now.
        """
        self.state = state
        self._segments = segments
        self._checkpoints = checkpoints
        self._subscribers = subscribers
        self._retainer = Retainer(state)
        self._in_flight: _Sealed | None = None

    def try_commit(self) -> list[LogEffect]:
        """Seal what is waiting and append it, if no commit is in flight."""
        if self._in_flight is not None or self.state.journal.frozen or not self._wanted():
            return []
        state = self.state
        chunks = state.intake.take(state.settings.batch_bytes) if state.intake.queue else []
        sealed = self._in_flight = self._seal(chunks)
        blob = encode(sealed.entry)
        return [state.journal.append(sealed.commit, blob, len(blob), state.records.stored_to)]

    def _wanted(self) -> bool:
        state = self.state
        if state.intake.queue or state.cursors.urgent or state.letters.changes or self._is_full(state.cursors.durable):
            return True
        alarm = self._alarm()
        return alarm is not None and alarm <= state.clock.now

    def _is_full(self, cursors: Mapping[str, int]) -> bool:
        """Whether the log is at its cap, and would drop records if the open segment ended now.

        A log at its cap may refuse every record (``LogReceiver.bound``). So no record would ever end the segment (G8).
        """
        state = self.state
        return state.records.kept >= state.settings.cap_bytes and self._retainer.drops_some(cursors)

    def _alarm(self) -> int | None:
        """When to commit without records: for ACKs, for the watermark, or for records that become too old."""
        state = self.state
        since = state.cursors.ack_since
        waits = state.watermark > state.journaled_watermark and bool(self._subscribers)
        kept = state.records.start < state.records.end
        ages = kept and (state.retention.stated or not state.cursors.durable)
        alarms = (
            None if since is None else since + state.settings.ack_delay,
            state.clock.appended_at + state.settings.watermark_delay if waits else None,
            self._retainer.due() if ages else None,
        )
        return min((alarm for alarm in alarms if alarm is not None), default=None)

    def next_alarm(self) -> int | None:
        """When to call ``try_commit`` if no event comes before."""
        return self._alarm() if self._in_flight is None and not self.state.journal.frozen else None

    def _seal(self, chunks: list[LogChunk]) -> _Sealed:
        state, records, cursors, settings = self.state, self.state.records, self.state.cursors, self.state.settings
        changes: CursorChanges | None = None
        if cursors.unsealed or cursors.deleted:
            changes = cursors.seal(records.start, records.end)
        checkpoint = state.journal.needs_base(settings.checkpoint_entries, settings.checkpoint_bytes)
        after = cursors.durable if changes is None else cursors.after(changes)
        cuts = self._cuts(chunks, checkpoint, after)
        start = state.records.start
        if cuts or state.records.closed:
            start = self._retainer.start_after(after, cuts)
        # Without records there are no ids, and the other facts may wait for the next commit with records.
        delta = state.ids.dedup.take((chunk.verdict, chunk.indexes) for chunk in chunks) if chunks else None
        entry = self._entry(chunks, cuts, start, changes, delta)
        state.journal.sealed += 1
        return _Sealed(state.journal.sealed, chunks, delta, entry, changes, checkpoint)

    def _entry(
        self,
        chunks: list[LogChunk],
        cuts: list[int],
        start: int,
        changes: CursorChanges | None,
        delta: IdDelta | None,
    ) -> LogEntry:
        state, watermark = self.state, self.state.watermark
        values = joined_values([chunk.values for chunk in chunks])
        timestamps = list(chain.from_iterable(chunk.timestamps for chunk in chunks))
        late = sum(sum(at < watermark for at in one.timestamps) for one in chunks if one.held < watermark)
        duplicates, state.ids.duplicates = state.ids.duplicates, 0
        return LogEntry(
            LOG_ENTRY_FORMAT,
            watermark,
            state.clock.age,
            state.records.end,
            values,
            timestamps,
            cuts,
            start,
            [] if changes is None else list(changes.moved.items()),
            [] if changes is None else changes.deleted,
            [] if delta is None else delta.to_wire(),
            (len(values), duplicates, late),
            state.letters.seal() if state.letters.changes else [],
        )

    def _cuts(self, chunks: Sequence[LogChunk], checkpoint: bool, cursors: Mapping[str, int]) -> list[int]:
        """Where segments end: before a chunk that would exceed the limit, where one is old, or at a captured base.

        Also where the log is full of records that no subscriber needs. ``cursors``: as they will be.
        """
        limit, current = self.state.settings.segment_bytes, self.state.records.open
        at, size = current.end, current.size
        cuts: list[int] = []
        cut_age = self.state.retention.cut_age
        if size and ((cut_age and self.state.clock.age - current.opened >= cut_age) or self._is_full(cursors)):
            # It is old: its records must not wait for new ones to be dropped. Or the log is full.
            cuts.append(at)
            size = 0
        for chunk in chunks:
            if size and size + chunk.size > limit:
                cuts.append(at)
                size = 0
            at += len(chunk.values)
            size += chunk.size
        if checkpoint and size:
            cuts.append(at)
        return cuts

    # Acknowledgement.

    def appended(self, event: Appended) -> list[LogEffect]:
        """The entry is in the journal: publish its records, ACK their senders, and advance the watermark."""
        out, sealed = list[LogEffect](), self._in_flight
        if sealed is None or sealed.commit != event.commit:
            return out
        self._in_flight = None
        state, entry = self.state, sealed.entry
        out.extend(state.journal.appended(sealed.commit))
        state.journaled_watermark = max(state.journaled_watermark, entry.watermark)
        state.clock.journaled_age = entry.age
        state.clock.appended_at = state.clock.now
        if entry.values or entry.cuts or entry.start != state.records.start:
            state.records.apply(entry, sealed.commit)
        if any(entry.counts):
            state.journal.counts.add(*entry.counts)
        if sealed.delta is not None:
            state.ids.dedup.committed(sealed.delta)
        if sealed.changes is not None:
            out.extend(CursorsAnswer(asker, []) for asker in state.cursors.committed(sealed.commit).askers)
        if entry.letters or entry.start > state.letters.start:
            out.extend(LettersAnswer(asker) for asker in state.letters.committed(entry.letters, entry.start))
        for chunk in sealed.chunks:
            if state.intake.settle(chunk):
                out.append(AnswerDelivery(chunk.receipt.delivery, _ACKED, chunk.receipt.excluded))
        if sealed.delta is not None and (full := state.ids.dedup.seal()):
            out.extend(self._segments.write(full))
        if sealed.checkpoint:
            out.append(self._checkpoints.capture())
        return out
