"""Which key runs next: blocked keys that can go on, then due timers, then the queue (4.1, 4.6; G5, G8, G13)."""

from __future__ import annotations

from collections.abc import Container, Iterator

from millwheel.model.time import TimeDomain
from millwheel.worker.interval.blocked_key_table import BlockedKeyTable
from millwheel.worker.interval.cache.pages import PageTable
from millwheel.worker.interval.holds import Hold
from millwheel.worker.interval.hooks.batch_running import BatchRunner
from millwheel.worker.interval.hooks.blocked_keys import BlockedKeys
from millwheel.worker.interval.hooks.pane_adding import PaneAdder
from millwheel.worker.interval.hooks.runner import Runner
from millwheel.worker.interval.setup import IntervalSetup
from millwheel.worker.interval.state import IntervalState
from millwheel.worker.messages import IntervalEffect, ReadStates

__all__ = ["KeyScheduler"]


class KeyScheduler:
    """Runs hooks into the batch, in the order that the guarantees need."""

    def __init__(self, state: IntervalState) -> None:
        self._setup: IntervalSetup = state
        self._clocks = state.clocks
        self._intake = state.intake
        self._timers = state.timers
        self._cells = state.cells
        self._outbox = state.outbox
        self._table = state.blocked
        self._pages = state.pages
        self._journal = state.journal
        self.blocked_keys = BlockedKeys(state)
        self.runner = self.blocked_keys.runner
        self._firing = self.blocked_keys.firing
        self._panes = state.panes
        self._adder = PaneAdder(state, self.runner, self._firing.panes.mover)
        program = state.program.batches
        if program is not None:
            self.runner.run_records = BatchRunner(state, self.runner, self.blocked_keys, program).run_records
        self._interrupted = False
        """Whether the last step had to end before its work did. The rest waits for no other event."""

    def recovered(self) -> None:
        """The journal is read. If the interval has panes by columns, or may have them, records take their way.

        It may have panes of an earlier version of its computation. Then a hook of many records gets single ones.
        """
        if self._panes.windows or self._panes.fold is not None:
            self.runner.run_records, self.runner.forms = self._adder.run_records, {}

    @property
    def outbox_full(self) -> bool:
        """Whether productions without an ACK are at the limit. Then only what holds the watermark may run (G13)."""
        unacked, settings = self._outbox.unacked, self._setup.settings
        return unacked.records >= settings.outbox_records or unacked.bytes >= settings.outbox_bytes

    def busy(self) -> Container[bytes]:
        """The keys whose cells are in use and must stay in the cache."""
        return _Busy(self.runner, self._table, self._pages)

    def run(self, room: bool, ahead_allowed: bool) -> None:
        """Run what can run, up to the limits of the batch.

        Args:
            room: Whether a blocked key may go on: the open commit has room for it.
            ahead_allowed: Whether records may run that do not hold the watermark.
        """
        if self._waits_for_commit:
            return
        if room and self._table.keys:
            self.blocked_keys.resume_ready()
        outbox_full = self.outbox_full
        if self._some_timer_queued:
            self._firing.run_all_due(outbox_full)
        if self._panes.windows and self._firing.panes.mover.asks_much:
            return  # keys that are not blocked may have due panes
        if self._intake.queue and not self.runner.full() and not (self._timers.spilled.parts and self._timers.behind):
            ahead_allowed = ahead_allowed and not (outbox_full or self._cells.overfull)
            self.runner.run_queue(ahead_allowed, self._firing.run_due_of if outbox_full else None)

    @property
    def _waits_for_commit(self) -> bool:
        """Whether no hook may begin: it writes elsewhere, and would overtake the commit of the write before.

        The end of the commit is an event, so nothing needs a Tick until then.
        """
        return self._setup.program.writes and not self._journal.all_committed

    @property
    def _some_timer_queued(self) -> bool:
        """Whether a timer may be due that no blocked key waits with."""
        timers = self._timers
        in_buckets = timers.event_time.first_time is not None or timers.processing_time.first_time is not None
        return in_buckets or bool(timers.ahead or self._panes.windows)

    def take_effects(self) -> list[IntervalEffect]:
        """The step ends: pass on what its hooks left to do, rows to read, hooks to await, and failures to report."""
        out: list[IntervalEffect] = []
        runner, blocked_keys = self.runner, self.blocked_keys
        self._interrupted = runner.step_ended()
        if self._pages.in_use.waiting:
            runner.rows_to_read += self._pages.in_use.admit()
        if runner.rows_to_read:
            out.append(ReadStates(self._setup.config.incarnation, runner.rows_to_read))
            runner.rows_to_read = []
        if blocked_keys.running.to_await:
            out.extend(blocked_keys.running.to_await)
            blocked_keys.running.to_await = []
        for reporter in (blocked_keys, self._pages):
            if reporter.reports:
                out.extend(reporter.reports)
                reporter.reports = []
        return out

    def next_timer_due(self) -> int | None:
        """The wall-clock time of the first timer that is not due. None: there is none.

        A timer that is due already needs no deadline. It waits for another event: its key is unblocked, the commit is
        appended, or its spilled part is read.
        """
        wall, domain = self._clocks.wall, TimeDomain.PROCESSING_TIME
        times = (self._timers.processing_time.first_time, self._timers.spilled.first[domain])
        return min((at for at in times if at is not None and at > wall), default=None)

    def next_retry(self) -> int | None:
        """When a blocked key is tried again, a time of ``elapsed``. A stopped interval retries nothing."""
        if self.blocked_keys.stopped or self._waits_for_commit:
            return None
        if self._interrupted:
            return self._clocks.elapsed + 1
        retry = self._table.next_retry() if self._table.keys else None
        again = self._firing.next_feed
        if again > self._clocks.elapsed and self._some_timer_queued and self.outbox_full:
            # A source with a full outbox reads again after a while, although no ACK comes.
            return again if retry is None else min(retry, again)
        return retry

    def holds(self) -> Iterator[Hold]:
        """The holds of the batch, of due timers that wait, and of those in an asynchronous hook."""
        if (hold := self.runner.batch.hold) is not None:
            yield hold
        yield from self.blocked_keys.holds()


class _Busy:
    """The keys of the batch, the blocked keys, and the pages that their hooks use."""

    def __init__(self, runner: Runner, table: BlockedKeyTable, pages: PageTable) -> None:
        self._pages = pages.in_use
        self._contexts = runner.batch.contexts
        self._blocked = table.keys

    def __contains__(self, key: object) -> bool:
        return key in self._contexts or key in self._blocked or key in self._pages
