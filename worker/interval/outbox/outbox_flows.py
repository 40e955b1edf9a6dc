"""All flows of one interval, and how they continue after a refusal, a loss, or a move of keys (6.1.1; G15).

A refused flow continues from the refused outbound batch if the receiver had no room. Otherwise it continues from the
oldest outbound batch that is not ACKed (docs/decisions/0020-order.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from millwheel.model.incarnation import IncarnationId
from millwheel.worker.interval.outbox.flows import Flow, ProductionBatch

__all__ = ["OutboxFlows"]

MAX_FLOWS: Final = 1_000
"""Number of flows of a consumer above which empty ones are dropped. Otherwise there is one for every past journal."""

_FIRST_WINDOW_BATCHES: Final = 1
"""Outbound batches that are sent first after a refusal. The number doubles each time the receiver accepts them."""


class OutboxFlows:
    """The flows of one interval's outbox. The outbox adds outbound batches to them, and takes out what it sends."""

    def __init__(
        self,
        batches: Mapping[int, ProductionBatch],
        locate: Callable[[IncarnationId, bytes], str],
        replace: Callable[[ProductionBatch], list[ProductionBatch]],
    ) -> None:
        """
        Args:
            batches: The outbound batches that are not ACKed, by token.
            locate: The journal that owns a consumer's key. Empty: no interval owns it.
            replace: Groups an outbound batch again, by the present owners of its keys, and adds the new ones to flows.
        """
        self._batches = batches
        self._locate = locate
        self._replace = replace
        self.by_consumer: dict[IncarnationId, dict[str, Flow]] = {}
        """By consumer and journal. The journal is empty for keys that no interval owns."""
        self.ready: dict[Flow, None] = {}
        """Flows that may have something to send."""
        self.uncommitted: list[ProductionBatch] = []
        """Outbound batches in flows that wait for their commit."""
        self._halted: dict[Flow, None] = {}
        """Flows with a refused sending."""

    # Moves of keys.

    def look_for_moves(self, consumer: IncarnationId) -> None:
        """Regroup what waits for journals that no longer own its keys, before younger productions join a flow."""
        flows = self.by_consumer.get(consumer)
        if not flows:
            return
        if len(flows) > MAX_FLOWS:
            self._forget_empty(flows)
        gone = [flow for flow in flows.values() if flow.batches and self._moved(flow)]
        if gone:
            self._regroup(consumer, gone)

    def _moved(self, flow: Flow) -> bool:
        """Whether the flow's keys have moved.

        All keys of a journal move at once, so one key is enough to check. Keys without an owner get owners one by one,
        so each is checked.
        """
        if flow.journal:
            one = next(iter(flow.batches))
            return self._locate(flow.consumer, one.keys[0]) != flow.journal
        return any(self._locate(flow.consumer, one.keys[i]) for one in flow.batches for i in one.indexes())

    def _regroup(self, consumer: IncarnationId, gone: Sequence[Flow]) -> None:
        """Move what these flows contain to the journals that own its keys now, oldest first."""
        flows = self.by_consumer[consumer]
        moving: list[ProductionBatch] = []
        for flow in gone:
            moving += flow.batches
            del flows[flow.journal]
            self.ready.pop(flow, None)
            self._halted.pop(flow, None)
        uncommitted = list(self.uncommitted)
        replaced: dict[ProductionBatch, list[ProductionBatch]] = {}
        for batch in sorted(moving, key=lambda one: (one.age, one.first)):
            replaced[batch] = self._replace(batch)
        self.uncommitted = [one for batch in uncommitted for one in replaced.get(batch, [batch])]
        for flow in {one.flow: None for fresh in replaced.values() for one in fresh}:
            self._begin(flow)

    def _forget_empty(self, flows: dict[str, Flow]) -> None:
        """Drop empty flows. A flow that is created again starts again, which is safe when everything is ACKed."""
        for journal in [journal for journal, flow in flows.items() if not flow.batches]:
            flow = flows.pop(journal)
            self._halted.pop(flow, None)
            self.ready.pop(flow, None)

    def forget_gone(self) -> None:
        """Drop the empty flows of consumers that no longer exist.

        This happens when a new consumer is added. So the number of consumers here never exceeds its earlier maximum
        (G13).
        """
        for consumer in [one for one in self.by_consumer if not self._locate(one, b"")]:
            flows = self.by_consumer[consumer]
            self._forget_empty(flows)
            if not flows:
                del self.by_consumer[consumer]

    # Refusals.

    def halt(self, token: int) -> None:
        """Stop the flow of a refused sending until that outbound batch is sent again."""
        batch = self._batches.get(token)
        if batch is not None and batch.sent:
            batch.flow.halted = token
            self._halted[batch.flow] = None

    def refuse(self, token: int, full: bool) -> None:
        """Register an attempt that was refused or lost. ``go_on`` must follow.

        ``full``: the receiver refused it only because it had no room.
        """
        batch = self._batches.get(token)
        if batch is not None and batch.sent:
            flow = batch.flow
            if flow.refused is None or token < flow.refused[0]:
                flow.refused = token, full
            self._halted[flow] = None

    def go_on(self) -> None:
        """Restart the flows with a refused sending, towards the current owners of their keys."""
        for flow in [one for one in self._halted if _may_go_on(one)]:
            if flow not in self._halted:
                continue  # it was regrouped with another
            del self._halted[flow]
            if flow.batches and self._moved(flow):
                self.look_for_moves(flow.consumer)
                continue
            if _go_on(flow):
                self._begin(flow)
            self.ready[flow] = None

    def begin_all(self) -> None:
        """Send everything that may be sent again."""
        self._halted.clear()
        for consumer in list(self.by_consumer):
            self.look_for_moves(consumer)
            for flow in list(self.by_consumer[consumer].values()):
                self._begin(flow)

    def _begin(self, flow: Flow) -> None:
        """Restart a flow from its oldest outbound batch."""
        _start(flow)
        self.ready[flow] = None

    def copies_refused(self, batch: ProductionBatch, indexes: Iterable[int]) -> None:
        """The receiver has accepted the attempt, but refused the records ``indexes`` as copies of records that it has.

        The whole outbound batch is sent again, behind the last attempt. The receiver has all of its records, so nothing
        has to wait for it. It is never divided, because its parts could change places when a flow restarts.
        """
        flow = batch.flow
        if flow.answered(batch.token):
            self.ready[flow] = None
        if batch.sent and not set(batch.indexes()).isdisjoint(indexes):
            batch.sent = False
            flow.waiting.append(batch)
            self.ready[flow] = None


def _may_go_on(flow: Flow) -> bool:
    """Whether the refused sending is known, or no longer matters because it is not under way any more."""
    return flow.refused is not None or not any(one.sent and one.token == flow.halted for one in flow.batches)


def _go_on(flow: Flow) -> bool:
    """Continue after a refusal whose delay is over. Returns whether the flow must restart from its oldest batch."""
    refused, flow.refused = flow.refused, None
    flow.halted = 0
    if refused is None:
        return False
    token, full = refused
    first = next((one for one in flow.batches if one.sent and one.token == token), None)
    if not full or first is None:
        return True
    again = sorted((one for one in flow.batches if one.sent and one.token >= token), key=lambda one: one.token)
    for one in again:
        one.sent = False
    flow.waiting.extendleft(reversed(again))
    flow.last = first.after
    flow.asked, flow.window = 0, _FIRST_WINDOW_BATCHES
    return False


def _start(flow: Flow) -> None:
    """Send everything that is not ACKed, from the oldest outbound batch."""
    due = sorted((one for one in flow.batches if one.committed), key=lambda one: (one.age, one.first))
    again = any(one.sent for one in due)
    for one in due:
        one.sent = False
    flow.waiting = deque(due)
    flow.last, flow.halted, flow.refused = 0, 0, None
    flow.asked, flow.window = 0, _FIRST_WINDOW_BATCHES if again else 0
