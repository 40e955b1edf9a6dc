"""Weak commits that wait for the ACKs of their productions (section 6.1.3; G10).

Invariant: in a computation with weak productions, productions caused by records are sent before their append. The
append waits until each of them is ACKed. After the straggler delay, those without an ACK are stored in that append.

Productions of timers are always stored before they are sent. They depend on state, and a deposed owner may have old
state while it still receives watermarks. Only a successful append proves ownership. Dead letters are stored first, too:
a letter says that its record had no effect, and the next owner's attempt at the record may succeed.

Weak commits wait in a queue, so that new productions need not wait for the ACKs of earlier ones. The last queued commit
is *open* while another is ahead of it: batches join it and their productions are sent at once. When the commit becomes
the first, it waits for its ACKs and the next commit is open.

Queued commits contain only productions caused by records. The record's id identifies these, also after a takeover. The
commit that sets a timer identifies the timer's productions, so that commit must be in the journal first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Final

from msgspec.structs import replace

from millwheel.model.incarnation import IncarnationId
from millwheel.model.limits import MAX_ENTRY_BYTES
from millwheel.worker.interval.commits.checkpoint import Checkpointer
from millwheel.worker.interval.commits.sealing import Sealed, Sealer
from millwheel.worker.interval.entry import IntervalEntry, ProductionRow
from millwheel.worker.interval.holds import Hold, joined
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.outbox.flows import ProductionBatch
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState

__all__ = ["WeakCommits"]

MAX_ACKS_PER_ENTRY: Final = 10_000
"""Maximum ACKs of stored productions in one entry: some MiB with the longest names, in addition to the batch."""


class WeakCommits:
    """The queue of weak commits, and the ACKs that the next commit journals."""

    def __init__(self, state: IntervalState, runner: Runner, sealer: Sealer, checkpoints: Checkpointer) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._outbox = state.outbox
        self._holds = state.holds
        self._runner = runner
        self._sealer = sealer
        self._checkpoints = checkpoints
        self.queue: deque[tuple[Sealed, int]] = deque()
        """The commits, each with its deadline by ``elapsed``: one, and an open commit behind it. Together they have no
        more records than one batch may have."""
        self._records = 0
        self.acked: deque[tuple[str, list[tuple[int, IncarnationId]], Hold]] = deque()
        """ACKs of stored weak productions that no commit has journaled, grouped by answer: the sequence, (position,
        consumer) of each, and the hold of the group."""

    def may_join(self, in_flight: Sealed | None) -> bool:
        """Whether a batch may be sealed behind other commits, so that its weak productions are sent."""
        batch, queue = self._runner.batch, self.queue
        if not self._setup.scope.any_produced or batch.fired or batch.given_up or batch.moved:
            return False
        if self._outbox.has_uncommitted:
            return False  # earlier productions are sent first (G15)
        if self._records + batch.records > self._setup.settings.batch_records:
            return False
        if self._checkpoints.wants_all_committed(self._clocks.elapsed):
            return False
        last = queue[-1][0] if queue else in_flight
        # A commit without lasting effects is never appended and gives its number back. So no commit may follow it.
        if self._open(in_flight) is None and (last is None or self.keeps_nothing(last)):
            return False
        # What has produced may be undone. Only productions are sent before the append.
        return any(one._read or one._productions for one in batch.contexts.values())

    def _open(self, in_flight: Sealed | None) -> Sealed | None:
        """The queued commit that batches may join: the last, unless it is the next to be appended."""
        behind = len(self.queue) > 1 or (self.queue and in_flight is not None)
        return self.queue[-1][0] if behind else None

    def join(self, in_flight: Sealed | None, changed: list[tuple[bytes, bytes]]) -> bool:
        """Queue the batch's commit, which waits for the ACKs of its weak productions. The caller sends these.

        Returns:
            False if the batch does not fit into the open commit.
        """
        batch, sealer, sealed = self._runner.batch, self._sealer, self._open(in_flight)
        records = sum(len(indexes) for _, indexes in batch.consumed)
        size = batch.size + self._setup.scope.produced_bytes + sum(map(len, map(itemgetter(1), changed)))
        if sealed is None:
            sealed = sealer.seal(self._runner.take_batch(), changed, stored_first=False)
            outbound = sealed.outbound
            self.queue.append((sealed, self._clocks.elapsed + self._setup.program.options.straggler_delay))
        elif sealed.size + size > MAX_ENTRY_BYTES:
            return False
        else:
            outbound = self._add_to(sealed, changed)
        sealed.size += size
        self._records += records
        for one in outbound:
            sealed.unacked.add(one.token)
            one.awaited = sealed.unacked
        return True

    def _add_to(self, sealed: Sealed, changed: list[tuple[bytes, bytes]]) -> list[ProductionBatch]:
        """Add the batch to the open commit. Returns the new outbound batches."""
        before = sealed.entry
        assert before is not None
        entry, outbound = self._sealer.apply(sealed, self._runner.take_batch(), changed)
        sealed.outbound += outbound
        before.states.extend(entry.states)
        sealed.repeats = True
        before.holds.extend(entry.holds)
        before.productions.extend(entry.productions)
        if entry.timers_set or entry.timers_cleared:
            if sealed.joined is None:
                sealed.joined = {row[:3]: row for row in before.timers_set}
            for name in entry.timers_cleared:
                sealed.joined.pop(name, None)
            sealed.joined.update((row[:3], row) for row in entry.timers_set)
            before.timers_cleared.extend(entry.timers_cleared)
        sealed.entry = replace(
            before,
            watermark=entry.watermark,
            wall=entry.wall,
            counts=tuple(map(sum, zip(before.counts, entry.counts, strict=True))),
        )
        return outbound

    def pop(self) -> Sealed | None:
        """Remove the first commit, if all its productions are ACKed or its straggler delay is over."""
        sealed, deadline = self.queue[0]
        if sealed.unacked and self._clocks.elapsed < deadline:
            return None
        self.queue.popleft()
        self._records -= sum(len(indexes) for _, indexes in sealed.consumed)
        return sealed

    def keeps_nothing(self, sealed: Sealed) -> bool:
        """Whether the commit has no effects to keep besides productions and ACKs."""
        entry = sealed.entry
        assert entry is not None
        ids = sealed.consumed and self._setup.program.options.exactly_once
        return not (ids or entry.states or entry.holds or sealed.timers or entry.timers_cleared)

    def complete(self, sealed: Sealed) -> IntervalEntry:
        """Complete the entry of a commit that is about to be appended: its stragglers, ids and ACKs."""
        entry = sealed.entry
        assert entry is not None
        stragglers: list[ProductionRow] = []
        for token in sealed.unacked:
            if (outbound := self._outbox.get(token)) is not None:
                stragglers += self._outbox.rows_of(outbound)
                # From here on the journal tracks the ACKs, because a takeover would send these records again.
                outbound.awaited = None
        sealed.unacked = set()
        acked, inherited = self._take_acked(sealed)
        sealed.entry = replace(
            entry,
            states=list(dict(entry.states).items()) if sealed.repeats else entry.states,
            timers_set=sealed.timers_set,
            productions=entry.productions if sealed.stored_first else _by_position(stragglers),
            ids=self._sealer.take_ids(sealed),
            acked=acked,
            acked_inherited=inherited,
        )
        return sealed.entry

    def _take_acked(self, sealed: Sealed) -> tuple[list[tuple[int, str]], list[tuple[str, int, str]]]:
        """The ACKs that fit into one entry: own ones, and those of parents' productions. The others wait for the next.

        The commit takes over their holds.
        """
        own: list[tuple[int, str]] = []
        inherited: list[tuple[str, int, str]] = []
        while self.acked and (not (taken := len(own) + len(inherited)) or self._fits(taken)):
            sequence, rows, hold = self.acked.popleft()
            if sequence:
                inherited += ((sequence, position, consumer) for position, consumer in rows)
            else:
                own += rows
            sealed.hold = joined(sealed.hold, hold)
        return own, inherited

    def _fits(self, taken: int) -> bool:
        return taken + len(self.acked[0][1]) <= MAX_ACKS_PER_ENTRY

    def acknowledged(self, outbound: ProductionBatch, remaining: Sequence[int]) -> None:
        """The records of a stored outbound batch are ACKed, except the indexes ``remaining``."""
        keep, consumer, positions = set(remaining), outbound.consumer, outbound.positions
        rows = [(positions[index], consumer) for index in outbound.indexes() if index not in keep]
        if rows:
            self.acked.append((outbound.sequence, rows, self._holds.open(outbound.held)))

    def holds(self) -> Iterator[Hold]:
        """The holds of the queued commits, and of ACKs that no commit has taken."""
        for sealed, _ in self.queue:
            if sealed.hold is not None:
                yield sealed.hold
        for _, _, hold in self.acked:
            yield hold


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
