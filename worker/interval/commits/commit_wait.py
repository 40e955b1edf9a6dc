"""How long the batch of a computation that collects waits for more records, before it is sealed (6.1.1).

Such a computation, as that of a sink's batches, writes again with each commit what it has collected so far. So under
load a commit waits for its first production, and is one of several deliveries. An injector may wait for each ACK: then
it has one delivery on its way. So a single delivery of an injector waits only behind a commit that had several. What a
computation has produced is committed there, and its senders have their ACKs.

Invariant (G8): the wait ends at ``until``, at the latest, which begins with the records and also bounds how long the
batch gathers deliveries that are there. The pump sets an alarm for that time, and each event after it commits. Who
could break it: a batch that cannot be sealed then, because an append is in flight. The end of that append is an event.
Meanwhile the records hold the watermark and have no ACK, as before any commit (G1, G7).
"""

from __future__ import annotations

from millwheel.model.incarnation import is_injector
from millwheel.worker.interval.commits.checkpoint import Checkpointer
from millwheel.worker.interval.hooks.runner import HookBatch, Runner
from millwheel.worker.interval.state import IntervalState

__all__ = ["CommitWait"]


class CommitWait:
    """Decides whether the batch waits. ``until`` is when that ends, a time of ``elapsed``. None: nothing could wait."""

    def __init__(self, state: IntervalState, runner: Runner, checkpoints: Checkpointer) -> None:
        self._clocks = state.clocks
        self._blocked = state.blocked
        self._runner = runner
        self._checkpoints = checkpoints
        self._fewest = state.settings.gathered_from
        self._most = min(state.program.collects_for, state.settings.collects_for)
        self._several = False
        """Whether the last commit had several deliveries."""
        self.until: int | None = None

    def goes_on(self) -> bool:
        """Whether the batch waits now."""
        batch = self._runner.batch
        if not self._most or not self._may_wait(batch):
            self.until = None
            return False
        if self.until is None:
            self.until = self._clocks.elapsed + self._most
        return self._has_load(batch) and not self.is_over()

    def is_over(self) -> bool:
        """Whether the batch has waited for its time."""
        return self.until is not None and self.until <= self._clocks.elapsed

    def committed(self, deliveries: int) -> None:
        """The commit of the batch has begun. It had records of so many deliveries."""
        self._several, self.until = deliveries > 1, None

    def alarm(self) -> int | None:
        """When a Tick has to end the wait, a time of ``elapsed``."""
        return None if self.is_over() else self.until

    def _has_load(self, batch: HookBatch) -> bool:
        """Whether more records may come before the ACK of these."""
        if self._several or len(batch.consumed) > 1:
            return True
        return not any(is_injector(receipt.delivery.sender.group) for receipt, _ in batch.consumed)

    def _may_wait(self, batch: HookBatch) -> bool:
        """Whether nothing but ACKs waits for the commit, and it would have states of many records."""
        if batch.records < self._fewest or not batch.contexts:
            return False
        if batch.fired or batch.given_up or batch.hold is not None:
            return False
        if self._blocked.keys or self._checkpoints.pressing or self._checkpoints.releasing or self._runner.full():
            return False
        return all(context._productions is None for context in batch.contexts.values())
