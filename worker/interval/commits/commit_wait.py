"""How long the batch of a computation that collects waits for more records, before it is sealed (6.1.1).

Such a computation, as that of a sink's batches, writes again with each commit what it has collected so far. So under
load a commit waits for its first production, and is one of several deliveries.

Invariant (G8): the wait ends at ``until``, at the latest. The pump sets an alarm for that time, and each event after it
commits. Who could break it: a batch that cannot be sealed then, because an append is in flight. The end of that append
is an event. Meanwhile the records hold the watermark and have no ACK, as before any commit (G1, G7).
"""

from __future__ import annotations

from millwheel.worker.interval.commits.checkpoint import Checkpointer
from millwheel.worker.interval.hooks.runner import HookBatch, Runner
from millwheel.worker.interval.state import IntervalState

__all__ = ["CommitWait"]


class CommitWait:
    """Decides whether the batch waits. ``until`` is when it ends, a time of ``elapsed``. None: nothing waits."""

    def __init__(self, state: IntervalState, runner: Runner, checkpoints: Checkpointer) -> None:
        self._clocks = state.clocks
        self._blocked = state.blocked
        self._runner = runner
        self._checkpoints = checkpoints
        self._fewest = state.settings.gathered_from
        self._most = min(state.program.collects, state.settings.collect_most)
        self.until: int | None = None

    def goes_on(self) -> bool:
        """Whether the batch waits now."""
        if not self._most or not self._may_wait(self._runner.batch):
            self.until = None
            return False
        now = self._clocks.elapsed
        if self.until is None:
            self.until = now + self._most
        return now < self.until

    def alarm(self) -> int | None:
        """When a Tick has to end the wait, a time of ``elapsed``."""
        return self.until if self.until is not None and self.until > self._clocks.elapsed else None

    def _may_wait(self, batch: HookBatch) -> bool:
        """Whether nothing but ACKs waits for the commit, and the senders have many records."""
        if batch.records < self._fewest or batch.fired or batch.given_up or batch.hold is not None:
            return False
        if self._blocked.keys or self._checkpoints.pressing or self._checkpoints.releasing or self._runner.full():
            return False
        return all(context._productions is None for context in batch.contexts.values())
