"""Group commit: sealing entries, and the steps after their append (sections 6.1.1, 6.1.2).

Invariant: at most one entry is between seal and acknowledgement. Senders are ACKed, and subscribers see records, only
when the entry with these records is in the journal (G1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import Append
from millwheel.worker.dedup import IdDelta
from millwheel.worker.log.checkpoint import LogCheckpointer
from millwheel.worker.log.cursors import CursorChanges
from millwheel.worker.log.entry import LOG_ENTRY_FORMAT, LogEntry, encode
from millwheel.worker.log.messages import CursorsAnswer, LogEffect
from millwheel.worker.log.receiving import LogReceiving
from millwheel.worker.log.retention import Retainer
from millwheel.worker.log.state import FreshRecords, LogState
from millwheel.worker.messages import Acknowledge, AppendEntry

__all__ = ["LogCommits"]

_ACKED: Final = DeliveryOutcome.DELIVERY_OUTCOME_ACKED


class _Sealed:
    """The commit in flight."""

    __slots__ = ("checkpoint", "commit", "delta", "entry", "pieces", "size")

    def __init__(
        self, commit: int, pieces: list[FreshRecords], delta: IdDelta, entry: LogEntry, checkpoint: bool
    ) -> None:
        self.commit = commit
        self.pieces = pieces
        self.delta = delta
        self.entry = entry
        self.checkpoint = checkpoint
        self.size = 0


class LogCommits:
    """Commits records, ACKs and deletions to the journal."""

    def __init__(
        self, state: LogState, receiving: LogReceiving, checkpoints: LogCheckpointer, listened: Callable[[], bool]
    ) -> None:
        """
        Args:
            state: The log's state.
            receiving: The admission of deliveries.
            checkpoints: Bases and the truncation point.
            listened: Whether any subscriber waits for the watermark.
        """
        self.state = state
        self._receiving = receiving
        self._checkpoints = checkpoints
        self._listened = listened
        self._retainer = Retainer(state)
        self._in_flight: _Sealed | None = None

    def try_commit(self, out: list[LogEffect]) -> None:
        """Seal what is waiting and append it, if no commit is in flight."""
        if self._in_flight is not None or not self._wanted():
            return
        state = self.state
        sealed = self._in_flight = self._seal(state.intake.take(state.settings.batch_bytes))
        blob = encode(sealed.entry)
        sealed.size = len(blob)
        floor, parts = self._checkpoints.floor_and_parts()
        config = state.config
        out.append(AppendEntry(config.journal, Append(config.sequencer, sealed.commit, floor, parts, blob)))

    def _wanted(self) -> bool:
        state = self.state
        if state.intake.line or state.cursors.urgent():
            return True
        alarm = self._alarm()
        return alarm is not None and alarm <= state.clock

    def _alarm(self) -> int | None:
        """When to commit without records: for ACKs, for the watermark, or for records that become too old."""
        state = self.state
        since = state.cursors.ack_since
        waits = state.watermark > state.assured and self._listened()
        alarms = (
            None if since is None else since + state.settings.ack_delay,
            state.appended_at + state.settings.watermark_delay if waits else None,
            self._retainer.due(),
        )
        return min((alarm for alarm in alarms if alarm is not None), default=None)

    def next_alarm(self) -> int | None:
        """When to call ``try_commit`` if no event comes before."""
        return self._alarm() if self._in_flight is None else None

    def _seal(self, pieces: list[FreshRecords]) -> _Sealed:
        state, records = self.state, self.state.records
        changes = state.cursors.seal(records.start, records.end)
        checkpoint = self._checkpoints.due()
        cuts = self._cuts(pieces, checkpoint)
        start = self._retainer.start_after(state.cursors.after(changes), cuts)
        delta = state.dedup.take((piece.verdict, piece.indexes) for piece in pieces)
        entry = self._entry(pieces, cuts, start, changes, delta)
        return _Sealed(state.committed + 1, pieces, delta, entry, checkpoint)

    def _entry(
        self, pieces: list[FreshRecords], cuts: list[int], start: int, changes: CursorChanges, delta: IdDelta
    ) -> LogEntry:
        state = self.state
        values, timestamps = _columns(pieces)
        watermark = state.watermark
        late = sum(sum(at < watermark for at in one.timestamps) for one in pieces if one.held < watermark)
        counts = (len(values), self._receiving.take_duplicates(), late)
        moved = list(changes.moved.items())
        return LogEntry(
            LOG_ENTRY_FORMAT,
            watermark,
            state.age,
            state.records.end,
            values,
            timestamps,
            cuts,
            start,
            moved,
            changes.deleted,
            delta.to_wire(),
            counts,
        )

    def _cuts(self, pieces: Sequence[FreshRecords], checkpoint: bool) -> list[int]:
        """Where segments end: before a piece that would exceed the limit, where one is old, or at a captured base."""
        limit, current = self.state.settings.segment_bytes, self.state.records.open
        at, size = current.end, current.size
        cuts: list[int] = []
        if size and self._retainer.is_old(current):
            cuts.append(at)
            size = 0
        for piece in pieces:
            if size and size + piece.size > limit:
                cuts.append(at)
                size = 0
            at += len(piece.values)
            size += piece.size
        if checkpoint and size:
            cuts.append(at)
        return cuts

    # Acknowledgement.

    def appended(self, commit: int) -> list[LogEffect]:
        """The entry is in the journal: publish its records, ACK their senders, and advance the watermark."""
        out: list[LogEffect] = []
        sealed = self._in_flight
        if sealed is None or sealed.commit != commit:
            return out
        self._in_flight = None
        state = self.state
        state.committed = commit
        state.assured = max(state.assured, sealed.entry.watermark)
        state.journaled_age = sealed.entry.age
        state.appended_at = state.clock
        state.journal_bytes += sealed.size
        out.extend(self._checkpoints.floor_committed())
        state.records.apply(sealed.entry, commit)
        state.counts.add(sealed.entry.counts)
        state.dedup.committed(sealed.delta)
        for asker in state.cursors.committed(commit).askers:
            out.append(CursorsAnswer(asker, []))
        for piece in sealed.pieces:
            if state.intake.settle(piece):
                out.append(Acknowledge(piece.receipt.delivery, _ACKED, piece.receipt.excluded))
        out.extend(self._receiving.seal_segments())
        if sealed.checkpoint:
            out.extend(self._checkpoints.capture())
        return out


def _columns(pieces: list[FreshRecords]) -> tuple[list[bytes], list[int]]:
    if len(pieces) == 1:
        return pieces[0].values, pieces[0].timestamps
    values: list[bytes] = []
    timestamps: list[int] = []
    for piece in pieces:
        values += piece.values
        timestamps += piece.timestamps
    return values, timestamps
