"""Group commit: sealing, appending, and the steps after the append (sections 6.1.1 to 6.1.3).

Invariant: at most one append is in flight, and appends follow the order of commit numbers. Strong productions are sent,
and senders are ACKed, only after the append of their commit is acknowledged (G1, G9).

Invariant: in a computation with weak productions, productions caused by records are sent before their append. The
append waits until each of them is ACKed. After the straggler delay, those without an ACK are stored in that same append
(G10).

Productions of timers are always stored before they are sent. They depend on state, and a deposed owner may have old
state while it still receives watermarks. Only a successful append proves ownership.

Weak commits wait in a queue, so that new productions need not wait for the ACKs of earlier ones. The last queued commit
is *open* while another is ahead of it: batches join it and their productions are sent at once. When the commit becomes
the first, it waits for its ACKs and the next commit is open.

Queued commits contain only productions caused by records. The record's id identifies these, also after a takeover. The
commit that sets a timer identifies the timer's productions, so that commit must be in the journal first. The soft state
is captured only while nothing is queued or in flight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.rpc.v1.delivery_pb2 import DeliveryOutcome
from millwheel.store.contract import Append, PartId
from millwheel.worker.dedup import OpaqueIds, PositionIds, Sender
from millwheel.worker.interval.checkpoint import Checkpointer
from millwheel.worker.interval.divided import divide
from millwheel.worker.interval.entry import ProductionRow, encode
from millwheel.worker.interval.flows import ProductionBatch
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.intake import DeliveryReceipt, IntervalInput
from millwheel.worker.interval.parts import PART_BYTES
from millwheel.worker.interval.runner import OpenCommit, Runner
from millwheel.worker.interval.sealing import Sealed, Sealer
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import INDEX_BITS, IntervalCounts, IntervalState
from millwheel.worker.messages import (
    Acknowledge,
    AppendEntry,
    Delivery,
    DeliveryOrder,
    IntervalEffect,
    Resend,
    SendDelivery,
    WriteParts,
)

__all__ = ["CommitPipeline", "EntryWriter"]

_STUCK_AFTER_COMMITS: Final = 1_000
"""Number of commits after which a production without an ACK counts as stuck."""
_MAX_ACKS_PER_ENTRY: Final = 10_000
"""Maximum ACKs of stored productions in one entry: some MiB with the longest names, in addition to the batch."""
_FIRST_ENTRY_NUMBER: Final = 1 << 42
"""PartsWritten numbers of entries start here, to be distinct from those of checkpoints, id segments and copies."""


class CommitPipeline:
    """Brings batches into the journal and productions out of the outbox."""

    def __init__(
        self,
        state: IntervalState,
        runner: Runner,
        received: IntervalInput,
        failed: Callable[[bytes, Exception], None],
    ) -> None:
        """
        Args:
            state: The interval's data.
            runner: Has the batch.
            received: Admits deliveries.
            failed: Takes a key whose state cannot be encoded.
        """
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._intake = state.intake
        self._outbox = state.outbox
        self._holds = state.holds
        self._journal = state.journal
        self._ids = state.ids
        self._runner = runner
        self._sealer = Sealer(state, failed)
        self.checkpoints = checkpoints = Checkpointer(state)
        self._input = received
        self._writer = EntryWriter(state, checkpoints)
        self._weak = not self._setup.program.options.strong
        self._in_flight: Sealed | None = None
        """The commit whose append is in flight, or whose entry's parts are being written before the append."""
        self._entry_bytes = 0
        self._line: deque[tuple[Sealed, int]] = deque()
        """Weak commits that wait for the ACKs of their productions, each with its deadline by ``elapsed``: one, and an
        open commit behind it. Together they have no more records than one batch may have."""
        self._line_records = 0
        self.crowded = False
        """Whether the open commit has no room for the current batch. The batch waits until the queue moves."""
        self._acked: deque[tuple[list[tuple[str, int, str]], Hold]] = deque()
        """ACKs of stored weak productions that no commit has journaled, grouped by answer, each group with its hold."""
        keys = self._setup.config.keys
        self._sender = (self._setup.config.journal, self._setup.config.sequencer, keys, self._setup.config.computation)

    # Sealing and appending.

    def try_commit(self, out: list[IntervalEffect]) -> bool:
        """Seal the batch and start its commit, if possible. Returns whether the next batch may run at once."""
        checkpoints = self.checkpoints
        still = self._in_flight is None and not self._line
        if not still and (self.crowded or not self._may_line_up()):
            return False
        if still and checkpoints.pressing:
            out.extend(checkpoints.press(self._clocks.elapsed))
        naming = checkpoints.wants_append
        duplicates = self._input.take_duplicates()
        batch = self._runner.batch
        if not batch:
            self._let_go(batch)
        if not (batch or self._acked or naming):
            # No commit is due that could carry the number of duplicates. The next checkpoint stores it.
            self._journal.counts.duplicates += duplicates
            return False
        changed = self._sealer.encode_states(batch)
        if not (batch or self._acked or naming):
            # No work of the batch can be stored now: it waits alone for its next attempt, or was given up.
            self._let_go(batch)
            self._journal.counts.duplicates += duplicates
            return False
        if not self._weak or batch.fired:
            sealed = self._sealer.seal(self._runner.take_batch(), changed, duplicates, stored_first=True)
            self._append(sealed, out)
        elif not self._line_up(changed, duplicates, out):
            self.crowded = True
            self._journal.counts.duplicates += duplicates
            return False
        return True

    def _may_line_up(self) -> bool:
        """Whether a batch may be sealed behind other commits, so that its weak productions are sent."""
        batch, line = self._runner.batch, self._line
        if not self._weak or not self._setup.scope.produced_bytes or batch.fired:
            return False
        if self._outbox.has_uncommitted:
            return False  # earlier productions are sent first (G15)
        if self._line_records + batch.records > self._setup.settings.batch_records:
            return False
        if self.checkpoints.wants_stillness(self._clocks.elapsed):
            return False
        last = line[-1][0] if line else self._in_flight
        # A commit without lasting effects is never appended and gives its number back. So no commit may follow it.
        return self._open() is not None or (last is not None and not self._passes(last))

    def _open(self) -> Sealed | None:
        """The queued commit that batches may join: the last, unless it is the next to be appended."""
        behind = len(self._line) > 1 or (self._line and self._in_flight is not None)
        return self._line[-1][0] if behind else None

    def _line_up(self, changed: list[tuple[bytes, bytes]], duplicates: int, out: list[IntervalEffect]) -> bool:
        """Send the batch's weak productions and queue its commit, which waits for their ACKs.

        Returns:
            False if the batch does not fit into the open commit.
        """
        batch, sealer, sealed = self._runner.batch, self._sealer, self._open()
        records = sum(len(indexes) for _, indexes in batch.consumed)
        size = batch.size + self._setup.scope.produced_bytes + sum(len(encoded) for _, encoded in changed)
        if sealed is None:
            sealed = sealer.seal(self._runner.take_batch(), changed, duplicates, stored_first=False)
            outbound = sealed.outbound
            self._line.append((sealed, self._clocks.elapsed + self._setup.program.options.straggler_delay))
        elif sealed.size + size > MAX_ENTRY_BYTES:
            return False
        else:
            outbound = sealer.join(sealed, self._runner.take_batch(), changed, duplicates)
        sealed.size += size
        self._line_records += records
        for one in outbound:
            sealed.unacked.add(one.token)
            one.awaited = sealed.unacked
        out.extend(self._send_ready())
        return True

    def _passes(self, sealed: Sealed) -> bool:
        """Whether the commit has no effects to keep besides productions and ACKs."""
        entry = sealed.entry
        assert entry is not None
        ids = sealed.consumed and self._setup.program.options.exactly_once
        return not (ids or entry.states or entry.holds or sealed.timers or entry.timers_cleared)

    def _let_go(self, batch: OpenCommit) -> None:
        """Release the watermark holds of a batch without work. Its blocked timers have holds of their own."""
        if batch.hold.count:
            batch.hold.release()
            batch.hold = self._holds.open()

    def _append(self, sealed: Sealed, out: list[IntervalEffect]) -> None:
        """Append the entry of a commit. A commit without lasting effects needs no append."""
        self.crowded = False
        assert sealed.entry is not None
        entry = sealed.entry
        if self._weak:
            stragglers = [row for token in sealed.unacked for row in self._outbox_rows(token)]
            # From here on the journal tracks their ACKs, because a takeover would send them again.
            for token in sealed.unacked:
                self._outbox.unawaited(token)
            sealed.unacked = set()
            acked, holds = self._take_acked()
            entry = replace(
                entry,
                states=list(dict(entry.states).items()),
                timers_set=sealed.timers_set,
                productions=entry.productions if sealed.stored_first else _by_position(stragglers),
                ids=self._sealer.take_ids(sealed),
                acked=[(position, consumer) for sequence, position, consumer in acked if not sequence],
                acked_inherited=[one for one in acked if one[0]],
            )
            for hold in holds:
                sealed.hold.take(hold)
            sealed.entry = entry
            kept = entry.productions or entry.acked or entry.acked_inherited
            if self._passes(sealed) and not kept and not self.checkpoints.wants_append:
                assert sealed.commit == self._journal.sealed, "nothing is sealed behind what passes"
                self._journal.sealed -= 1
                self._done(sealed, out)
                return
        self._in_flight = sealed
        blob = encode(entry)
        self._entry_bytes = len(blob)
        out.extend(self._writer.write(sealed.commit, blob))

    def parts_written(self, number: int) -> list[IntervalEffect]:
        """Parts are acknowledged. If they belong to the entry in flight, append the entry."""
        return self._writer.parts_written(number)

    def _take_acked(self) -> tuple[list[tuple[str, int, str]], list[Hold]]:
        """The ACKs that fit into one entry, with their holds. The others wait for the next entry."""
        rows: list[tuple[str, int, str]] = []
        holds: list[Hold] = []
        while self._acked and (not rows or len(rows) + len(self._acked[0][0]) <= _MAX_ACKS_PER_ENTRY):
            taken, hold = self._acked.popleft()
            rows += taken
            holds.append(hold)
        return rows, holds

    def _outbox_rows(self, token: int) -> list[ProductionRow]:
        outbound = self._outbox.get(token)
        return [] if outbound is None else list(self._outbox.rows_of(outbound))

    def appended(self, commit: int) -> list[IntervalEffect]:
        """The entry is in the journal: ACK the senders, send productions and release holds."""
        out: list[IntervalEffect] = []
        sealed = self._in_flight
        if sealed is None or sealed.commit != commit:
            return out
        self._journal.committed = commit
        self.crowded = False
        out.extend(self.checkpoints.truncation_committed())
        self._in_flight = None
        self._done(sealed, out)
        self.checkpoints.journal_bytes += self._entry_bytes
        # Sealed id segments hold committed ids only, so queued commits do not matter.
        out.extend(self._input.seal_segments())
        if not self._line:
            out.extend(self.checkpoints.after_commit(self._clocks.elapsed))
        return out

    def _done(self, sealed: Sealed, out: list[IntervalEffect]) -> None:
        if sealed.ids is not None:
            self._ids.dedup.committed(sealed.ids)
        sealed.hold.release()
        if sealed.entry is not None:
            self._journal.counts.add(IntervalCounts(*sealed.entry.counts))
        self._acknowledge(sealed, out)
        if sealed.stored_first:
            self._outbox.release()
            out.extend(self._send_ready())

    def _acknowledge(self, sealed: Sealed, out: list[IntervalEffect]) -> None:
        settle = self._intake.settle
        touched: dict[int, DeliveryReceipt] = {}
        for receipt, indexes in sealed.consumed:
            if settle(receipt, indexes):
                out.append(Acknowledge(receipt.delivery, DeliveryOutcome.DELIVERY_OUTCOME_ACKED, receipt.excluded))
            touched[id(receipt)] = receipt
        for receipt in touched.values():
            if receipt.open and receipt.worth_reporting():
                # The remaining records wait for their keys. Report the others, so that the sender can drop them.
                receipt.answered = receipt.open
                remaining = sorted({*receipt.blocked, *receipt.excluded})
                out.append(Acknowledge(receipt.delivery, DeliveryOutcome.DELIVERY_OUTCOME_ACKED, remaining))

    # Sending.

    def _send_ready(self) -> list[IntervalEffect]:
        """Send all outbound batches that may be sent now."""
        return [self._send(outbound, order) for outbound, order in self._outbox.take_ready()]

    def _send(self, outbound: ProductionBatch, order: DeliveryOrder) -> SendDelivery:
        """Build the delivery of an outbound batch, with this sender's current ACK mark."""
        name, sequencer, keys, computation = self._sender
        sender = Sender(name, sequencer, keys, computation, self._holds.output, self._clocks.highest_stated)
        ids: PositionIds | OpaqueIds
        if outbound.opaque:
            ids = OpaqueIds(outbound.opaque)
        elif outbound.sequence:
            # Siblings send under the same sequence. So this sender cannot state which positions of it are ACKed.
            ids = PositionIds(outbound.sequence, 0, outbound.positions)
        else:
            committed = self._journal.committed
            otherwise, old = (committed + 1) << INDEX_BITS, (committed - _STUCK_AFTER_COMMITS) << INDEX_BITS
            mark, unacked = self._outbox.statement(outbound.consumer, otherwise, old)
            ids = PositionIds(name, mark, outbound.positions, unacked)
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
            )
        )

    def acknowledged(self, token: int, remaining: Sequence[int]) -> list[IntervalEffect]:
        """A receiver has ACKed an outbound batch, except for the indexes ``remaining``."""
        outbound = self._outbox.get(token)
        if outbound is None:
            return []
        if outbound.opaque and outbound.awaited is None:
            name, consumer = outbound.sequence, outbound.consumer
            leaving = [(name, outbound.positions[i], consumer) for i in self._leaving(outbound, remaining)]
            if leaving:
                self._acked.append((leaving, self._holds.open(outbound.held)))
        self._outbox.acknowledged(token, remaining)
        return self._send_ready()

    @staticmethod
    def _leaving(outbound: ProductionBatch, remaining: Sequence[int]) -> list[int]:
        keep = set(remaining)
        return [index for index in outbound.indexes() if index not in keep]

    def resend(self, event: Resend) -> list[IntervalEffect]:
        """Send what was not ACKed again, to the current owners of its keys."""
        outbox = self._outbox
        if event.tokens is None:
            outbox.begin_all()
            return self._send_ready()
        for token in event.tokens:
            outbound = outbox.get(token)
            if outbound is None:
                continue
            part = event.refused.get(token)
            if part is None:
                outbox.refuse(token, token in event.full)
            else:
                outbox.copies_refused(outbound, part)
        outbox.go_on()
        return self._send_ready()

    def begin(self) -> list[IntervalEffect]:
        """The interval starts to serve: send productions that an earlier owner committed and that are not ACKed."""
        self._outbox.begin_all()
        return self._send_ready()

    def holds(self) -> Iterator[Hold]:
        """The holds of the commits that are not in the journal yet, and of ACKs that no commit has taken."""
        if self._in_flight is not None:
            yield self._in_flight.hold
        yield from (sealed.hold for sealed, _ in self._line)
        yield from (hold for _, hold in self._acked)

    # Time.

    def next_alarm(self) -> int | None:
        """When stragglers are stored or, if nothing is in flight, rows are flushed; a time of ``elapsed``."""
        if self._in_flight is not None:
            return None
        if self._line:
            return self._line[0][1]
        return self.checkpoints.next_alarm(self._clocks.elapsed)

    def idle(self) -> list[IntervalEffect]:
        """Time has passed: flush rows if nothing is in flight."""
        still = self._in_flight is None and not self._line
        return self.checkpoints.idle(self._clocks.elapsed) if still else []

    def settle_weak(self, out: list[IntervalEffect]) -> bool:
        """Append the first queued weak commit if its productions are all ACKed or its straggler delay is over.

        Returns:
            Whether a commit ended without an append, because it has no effects to keep. Work that waited for it, such
            as the input watermark, must continue now. No other event may come to trigger that (G8).
        """
        over = False
        while self._line and not self._appends():
            sealed, deadline = self._line[0]
            if sealed.unacked and self._clocks.elapsed < deadline:
                break
            self._line.popleft()
            self._line_records -= _records(sealed)
            self._append(sealed, out)
            over = over or not self._appends()
        return over

    def _appends(self) -> bool:
        """Whether an append is in flight. The compiler takes an attribute for unchanged in a loop, but not a call."""
        return self._in_flight is not None


class EntryWriter:
    """Writes one entry at a time, of any size, into the interval's journal (6.1.2; G2).

    Invariant: an append starts only after every part that it names is acknowledged. An owner that is deposed in between
    leaves parts that no head names. The next owner deletes them.
    """

    def __init__(self, state: IntervalState, checkpoints: Checkpointer) -> None:
        self._setup: IntervalSetup = state
        self._journal = state.journal
        self._checkpoints = checkpoints
        self._waiting: tuple[int, int, bytes, tuple[PartId, ...]] | None = None
        """The entry whose parts are being written: their number, its commit, the small entry to append, their ids."""

    def write(self, commit: int, entry: bytes) -> list[IntervalEffect]:
        """Append ``entry`` to the journal, or first write its parts if it is too large for one append."""
        config = self._setup.config
        if len(entry) <= self._setup.settings.entry_bytes:
            return [self._append(commit, entry)]
        most = min(self._setup.settings.entry_bytes, PART_BYTES)
        small, parts = divide(entry, config.sequencer, commit, most)
        number = _FIRST_ENTRY_NUMBER + commit
        self._waiting = number, commit, small, tuple(parts)
        return [WriteParts(config.journal, number, parts)]

    def parts_written(self, number: int) -> list[IntervalEffect]:
        """Parts are acknowledged. If they belong to the waiting entry, append it."""
        if self._waiting is None or self._waiting[0] != number:
            return []
        _, commit, small, parts = self._waiting
        self._waiting = None
        self._journal.entry_parts[commit] = parts
        return [self._append(commit, small)]

    def _append(self, commit: int, entry: bytes) -> AppendEntry:
        config, options = self._setup.config, self._setup.program.options
        point, parts = self._checkpoints.truncation_and_parts()
        if self._journal.entry_parts:
            needed = (each for number, each in self._journal.entry_parts.items() if number > point)
            parts = sum(needed, parts)
        sync = options.exactly_once or options.strong
        return AppendEntry(config.journal, Append(config.sequencer, commit, point, parts, entry, sync))


def _by_position(rows: list[ProductionRow]) -> list[ProductionRow]:
    """Rows as a journal stores them. Rows of several consumers for one position become one row with one value."""
    merged: list[ProductionRow] = []
    for row in sorted(rows):
        if merged and merged[-1][0] == row[0]:
            position, producer, stream, value, timestamp, targets, opaque = merged[-1]
            merged[-1] = position, producer, stream, value, timestamp, (*targets, *row[5]), opaque
        else:
            merged.append(row)
    return merged


def _records(sealed: Sealed) -> int:
    return sum(len(indexes) for _, indexes in sealed.consumed)
