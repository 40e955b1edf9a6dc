"""How long a batch waits for more records before it is sealed (6.1.1).

- While the next delivery is there, it waits for that one. A key that occurs in several deliveries has its state encoded
  and journaled once for all of them. So a batch of many keys waits only if keys occur again in it.
- A computation that collects, as that of a sink's batches, writes again with each commit what it has collected so far.
  So under load its commit waits until the first production, also for deliveries that are not there.

An injector may wait for each ACK: then it has one delivery on its way. So a single delivery of an injector, behind a
commit of a single one, waits for none that is not there. What a computation has produced is committed there, and its
senders have their ACKs.

Invariant (G8): each wait ends at ``until``, a time that is known when the wait begins. The pump sets an alarm for that
time, and each event after it commits. So nothing depends on the driver's promise of a delivery. Who could break it: a
batch that cannot be sealed then, because an append is in flight. The end of that append is an event. Meanwhile the
records hold the watermark and have no ACK, as before any commit (G1, G7).
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
        settings = state.settings
        self._clocks = state.clocks
        self._blocked = state.blocked
        self._runner = runner
        self._checkpoints = checkpoints
        self._fewest = settings.gathered_from
        self._gathers_for = settings.gathered_for
        self._collects_for = min(state.program.collects_for, settings.collects_for)
        self._several = False
        """Whether the last commit had several deliveries."""
        self.followed = False
        """Whether the next event of this core is a delivery, as the driver says. Else the event ends that wait."""
        self.until: int | None = None

    def goes_on(self) -> bool:
        """Whether the batch waits now."""
        batch = self._runner.batch
        longest = self._longest(batch)
        if not longest:
            self.until = None
            return False
        if self.until is None:
            self.until = self._clocks.elapsed + longest
        return self._clocks.elapsed < self.until and (self.followed or self._has_load(batch))

    def committed(self, deliveries: int) -> None:
        """The commit of the batch has begun. It had records of so many deliveries."""
        self._several, self.until = deliveries > 1, None

    def alarm(self) -> int | None:
        """When a Tick has to end the wait, a time of ``elapsed``."""
        return self.until if self.until is not None and self.until > self._clocks.elapsed else None

    def _has_load(self, batch: HookBatch) -> bool:
        """Whether more records may come before the ACK of these."""
        if self._several or len(batch.consumed) > 1:
            return True
        return not any(is_injector(receipt.delivery.sender.group) for receipt, _ in batch.consumed)

    def _longest(self, batch: HookBatch) -> int:
        """For how long the batch may wait, if more records come. 0: not at all."""
        # The work of a failed key goes on by one hook for each commit. A batch with such work waits for nothing.
        if self._runner.full() or batch.records < self._fewest or self._blocked.ready:
            return 0
        if self._collects_for and self._only_collects(batch):
            return self._collects_for
        return self._gathers_for if self.followed and not self._runner.keys_differ() else 0

    def _only_collects(self, batch: HookBatch) -> bool:
        """Whether nothing but ACKs waits for the commit, and it has states."""
        if not batch.contexts:
            return False
        if batch.fired or batch.given_up or batch.hold is not None:
            return False
        if self._blocked.keys or self._checkpoints.pressing or self._checkpoints.releasing:
            return False
        return all(context._productions is None for context in batch.contexts.values())
