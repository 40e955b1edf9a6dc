"""Group commit: sealing, appending, and the steps after the append (sections 6.1.1 to 6.1.3).

Invariant: at most one append is in flight, and appends follow the order of commit numbers. Strong productions are sent,
and senders are ACKed, only after the append of their commit is acknowledged (G1, G9).

Weak productions of records are sent before the append. Their commits wait for it in a queue (``weak_commits.py``). The
soft state is captured only while nothing is queued or in flight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.id_segments import IdSegments
from millwheel.worker.interval.commits.checkpoint import Checkpointer
from millwheel.worker.interval.commits.divided import DividedEntries
from millwheel.worker.interval.commits.sealing import Sealed, Sealer
from millwheel.worker.interval.commits.weak_commits import WeakCommits
from millwheel.worker.interval.entry import encode
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.outbox.flows import INDEX_BITS, ProductionBatch
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import (
    Acknowledged,
    AnswerDelivery,
    Appended,
    Delivery,
    DeliveryOrder,
    IntervalEffect,
    Resend,
    SendDelivery,
    Tick,
)

__all__ = ["CommitPipeline"]

STUCK_AFTER_COMMITS: Final = 1_000
"""Number of commits after which a production without an ACK counts as stuck."""


class CommitPipeline:
    """Brings batches into the journal and productions out of the outbox.

    It has many attributes, because a commit ends the work of almost all owners of data.
    """

    def __init__(
        self,
        state: IntervalState,
        runner: Runner,
        segments: IdSegments,
        sealer: Sealer,
    ) -> None:
        """
        Args:
            state: The interval's data.
            runner: Has the batch.
            segments: Writes full segments of ids.
            sealer: Makes commits of batches.
        """
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._intake = state.intake
        self._outbox = state.outbox
        self._output = state.output
        self._journal = state.journal
        self._cells = state.cells
        self._ids = state.ids
        self._runner = runner
        self._sealer = sealer
        self.checkpoints = checkpoints = Checkpointer(state)
        self._segments = segments
        self._divided = DividedEntries(state.journal, self._setup.settings.entry_bytes)
        self._sync = self._setup.program.options.exactly_once or self._setup.program.options.strong
        self.strong = self._setup.program.options.strong
        """Whether productions are sent after their commit, one commit after the other."""
        self._weak = not self.strong
        self._in_flight: Sealed | None = None
        """The commit whose append is in flight, or whose entry's parts are being written before the append."""
        self.weak_commits = WeakCommits(state, runner, self._sealer, checkpoints)
        self.open_commit_full = False
        """Whether the open commit has no room for the current batch. The batch waits until the queue moves."""
        self._measures = self._setup.meter.measures
        self._append_began = 0.0
        """When the append in flight began, by the meter's clock."""
        config = state.config
        self._sender = (config.journal, config.sequencer, config.keys, config.incarnation)

    # Sealing and appending.

    def try_commit(self) -> tuple[bool, list[IntervalEffect]]:
        """Seal the batch and start its commit, if possible. Returns whether the next batch may run at once."""
        out: list[IntervalEffect] = []
        checkpoints, waiting, batch = self.checkpoints, self.weak_commits, self._runner.batch
        none_before = self._in_flight is None and not waiting.queue
        blocked = not none_before and (not self._weak or self.open_commit_full or not waiting.may_join(self._in_flight))
        if blocked or self._journal.frozen:
            return False, out
        if none_before and checkpoints.pressing:
            out.extend(checkpoints.press(self._clocks.elapsed))
        # Encoding may empty the batch: work that fails there waits alone for its next attempt, or is given up.
        changed = self._sealer.encode_states(batch) if batch else []
        if not batch:
            batch.changed.clear()  # encoded before, for a commit that had no room
            if batch.hold is not None:  # work that was blocked meanwhile has holds of its own
                batch.hold.release()
                batch.hold = None
            if not (waiting.acked or (checkpoints.pressing and checkpoints.wants_append)):
                # No commit is due that could carry the number of duplicates. The next checkpoint stores it.
                self._journal.counts.duplicates += self._ids.duplicates
                self._ids.duplicates = 0
                return False, out
        if not self._weak or batch.fired or batch.given_up:
            out.extend(self._append(self._sealer.seal(self._runner.take_batch(), changed, stored_first=True)))
            return True, out
        self.open_commit_full = not waiting.join(self._in_flight, changed)
        if not self.open_commit_full:
            out.extend(self._send_ready())
        return not self.open_commit_full, out

    def _append(self, sealed: Sealed) -> list[IntervalEffect]:
        """Append the entry of a commit. A commit without lasting effects needs no append."""
        self.open_commit_full = False
        assert sealed.entry is not None
        entry = sealed.entry
        if self._weak:
            entry = self.weak_commits.complete(sealed)
            kept = entry.productions or entry.acked or entry.acked_inherited
            if self.weak_commits.keeps_nothing(sealed) and not kept and not self.checkpoints.wants_append:
                assert sealed.commit == self._journal.sealed, "nothing is sealed behind a commit that keeps nothing"
                self._journal.sealed -= 1
                return self._done(sealed)
        self._in_flight = sealed
        blob = encode(entry)
        self._append_began = self._setup.meter.clock()
        self._measures.entry_bytes.add(len(blob))
        self._measures.entry_records.add(entry.counts[0])
        size = len(blob) + sealed.spared
        if len(blob) > self._setup.settings.entry_bytes:
            return [self._divided.write(sealed.commit, blob, size)]
        return [self._journal.append(sealed.commit, blob, size, self.checkpoints.rows.acknowledged, self._sync)]

    def parts_written(self, number: int) -> list[IntervalEffect]:
        """Parts are acknowledged. If they belong to the entry in flight, append the entry."""
        small = self._divided.written(number)
        return [] if small is None else [self._journal.append(*small, self.checkpoints.rows.acknowledged, self._sync)]

    def appended(self, event: Appended) -> list[IntervalEffect]:
        """The entry is in the journal: ACK the senders, send productions and release holds."""
        out: list[IntervalEffect] = []
        sealed = self._in_flight
        if sealed is None or sealed.commit != event.commit:
            return out
        self._in_flight = None
        self._measures.append_seconds.add(self._setup.meter.clock() - self._append_began)
        self.open_commit_full = False
        out.extend(self._journal.appended(event.commit))
        if out:
            self.checkpoints.base_named()
        out.extend(self._done(sealed))
        # Sealed id segments hold committed ids only, so queued commits do not matter.
        if full := self._ids.dedup.seal():
            out.extend(self._segments.write(full))
        if not self.weak_commits.queue and self._checkpoint_due():
            out.extend(self.checkpoints.after_commit(self._clocks.elapsed))
        return out

    def _done(self, sealed: Sealed) -> list[IntervalEffect]:
        if sealed.ids is not None:
            self._ids.dedup.committed(sealed.ids)
        if sealed.hold is not None:
            sealed.hold.release()
        if sealed.entry is not None:
            self._journal.counts.add(*sealed.entry.counts)
        out = self._acknowledge(sealed)
        if sealed.stored_first:
            self._outbox.release()
            out.extend(self._send_ready())
        return out

    def _acknowledge(self, sealed: Sealed) -> list[IntervalEffect]:
        out: list[IntervalEffect] = []
        settle, now, latency = self._intake.settle, self._clocks.elapsed, self._measures.commit_latency
        for receipt, indexes in sealed.consumed:
            latency.add((now - receipt.since) / 1e6, len(indexes))
            if settle(receipt, indexes):
                out.append(AnswerDelivery(receipt.delivery, DeliveryOutcome.DELIVERY_OUTCOME_ACKED, receipt.excluded))
        return out

    def report_progress(self) -> list[IntervalEffect]:
        """Name the records that wait with their keys, so that the sender can drop the others.

        They may be set aside when the others are committed, or later.
        """
        out: list[IntervalEffect] = []
        for receipt in self._intake.to_report():
            remaining = sorted({*receipt.blocked, *receipt.excluded})
            out.append(AnswerDelivery(receipt.delivery, DeliveryOutcome.DELIVERY_OUTCOME_ACKED, remaining))
        return out

    # Sending.

    def _send_ready(self) -> list[IntervalEffect]:
        """Send all outbound batches that may be sent now."""
        return [self._send(outbound, order) for outbound, order in self._outbox.take_ready()]

    def _send(self, outbound: ProductionBatch, order: DeliveryOrder) -> SendDelivery:
        """Build the delivery of an outbound batch, with this sender's current ACK mark."""
        name, sequencer, keys, incarnation = self._sender
        sender = Sender(name, sequencer, keys, incarnation, self._output.value, self._clocks.highest_stated)
        ids: PositionIds | OpaqueIds
        if outbound.opaque:
            ids = OpaqueIds(outbound.opaque)
        elif outbound.sequence:
            # Siblings send under the same sequence. So this sender cannot state which positions of it are ACKed.
            complete = self._complete(outbound, gaps=False)
            ids = PositionIds(outbound.sequence, 0, outbound.positions, complete=complete)
        else:
            committed = self._journal.committed
            otherwise, old = (committed + 1) << INDEX_BITS, (committed - STUCK_AFTER_COMMITS) << INDEX_BITS
            mark, unacked = self._outbox.statement(outbound.consumer, otherwise, old)
            complete = self._complete(outbound, gaps=mark >= old)
            ids = PositionIds(name, mark, outbound.positions, unacked, complete)
        return SendDelivery(
            Delivery(
                outbound.consumer,
                outbound.journal,
                outbound.stream,
                sender,
                ids,
                outbound.keys,
                outbound.values,
                outbound.timestamps,
                outbound.token,
                None,
                order,
                waited=self._clocks.elapsed - outbound.since,
            )
        )

    def _complete(self, outbound: ProductionBatch, *, gaps: bool) -> bool:
        """Whether the delivery is stated as complete (``PositionIds.complete``).

        Args:
            outbound: What is sent.
            gaps: Whether its positions may have gaps. Invariant (G13): only while the stated mark moves. Halves of a
                receiver have different ranges then, so their pieces stay apart after a merge until the mark passes.
                Else each split would add a piece, and each later range would be in all pieces.
        """
        if not (self._setup.config.result_columns and outbound.complete):
            return False
        return gaps or outbound.gapless

    def acknowledged(self, event: Acknowledged) -> list[IntervalEffect]:
        """A receiver has ACKed an outbound batch, or a part of it."""
        outbound = self._outbox.get(event.token)
        if outbound is None:
            return []
        if outbound.opaque and outbound.awaited is None:
            self.weak_commits.acknowledged(outbound, event.remaining)
        acked = outbound.count() - len(event.remaining)
        self._outbox.acknowledged(event.token, event.remaining)
        if acked > 0:
            self._measures.ack_latency.add((self._clocks.elapsed - outbound.since) / 1e6, acked)
        return self._send_ready()

    def resend(self, event: Resend) -> list[IntervalEffect]:
        """Send what was not ACKed again, to the current owners of its keys."""
        outbox = self._outbox
        if event.tokens is None:
            outbox.flows.begin_all()
            return self._send_ready()
        for token in event.tokens:
            outbound = outbox.get(token)
            if outbound is None:
                continue
            part = event.refused.get(token)
            if part is None:
                outbox.flows.refuse(token, token in event.full)
            else:
                outbox.flows.copies_refused(outbound, part)
        outbox.flows.go_on()
        return self._send_ready()

    def holds(self) -> Iterator[Hold]:
        """The holds of the commits that are not in the journal yet, and of ACKs that no commit has taken."""
        if self._in_flight is not None and self._in_flight.hold is not None:
            yield self._in_flight.hold
        yield from self.weak_commits.holds()

    # Time.

    def next_alarm(self) -> int | None:
        """When stragglers are stored or, if nothing is in flight, rows are flushed; a time of ``elapsed``."""
        if self.checkpoints.rows.settling:
            return self._clocks.elapsed
        if self._append_blocked():
            return None
        if self.weak_commits.queue:
            return self.weak_commits.queue[0][1]
        rows, cells, now = self.checkpoints.rows, self._cells, self._clocks.elapsed
        if rows.flush is not None or not cells.dirty_count:
            return None
        base_waits = not self._journal.base_at_rest and self.checkpoints.base_waits
        needed = rows.left or cells.needs_flush or base_waits
        return now if needed else max(now, self._flush_at())

    def _flush_at(self) -> int:
        """When rows are written that nothing waits for."""
        return self.checkpoints.rows.times.due_at(self._cells.dirty_count)

    def _checkpoint_due(self) -> bool:
        """Whether rows, a base, or timers that leave memory may be due after a commit. ``checkpoints`` then decides."""
        journal, settings = self._journal, self._setup.settings
        return (
            self._clocks.elapsed >= self._flush_at()
            or self.checkpoints.rows.left
            or self._cells.needs_flush
            or journal.above >= settings.checkpoint_entries // 16
            or journal.bytes >= settings.checkpoint_bytes
            or not journal.base_at_rest
            or bool(self.checkpoints.spilling.outgoing)
        )

    def on_tick(self, event: Tick) -> list[IntervalEffect]:
        """Time has passed: flush rows if nothing is in flight."""
        if self._in_flight is not None or self.weak_commits.queue:
            return []
        return self.checkpoints.flush_if_due(self._clocks.elapsed)

    def settle_weak(self) -> tuple[bool, list[IntervalEffect]]:
        """Append the first queued weak commit if its productions are all ACKed or its straggler delay is over.

        Returns:
            Whether a commit ended without an append, because it has no effects to keep. Work that waited for it, such
            as the input watermark, must continue now. No other event may come to trigger that (G8).
        """
        over = False
        out: list[IntervalEffect] = []
        while self.weak_commits.queue and not self._append_blocked():
            if (sealed := self.weak_commits.pop()) is None:
                break
            out.extend(self._append(sealed))
            over = over or not self._append_blocked()
        return over, out

    def _append_blocked(self) -> bool:
        """Whether no append may begin. A call, because the compiler takes an attribute for unchanged in a loop."""
        return self._in_flight is not None or bool(self._journal.frozen)
