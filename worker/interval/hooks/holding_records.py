"""The queued records that run while something is over its limit: those that hold the input watermark (G8, G13)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from millwheel.worker.interval.intake import IntervalIntake, QueuedRecords

__all__ = ["bring_forward", "next_holding"]


def next_holding(intake: IntervalIntake, watermark: int, feedback: Collection[str]) -> QueuedRecords | None:
    """The queued records that hold the watermark, or that close a cycle. A cycle would otherwise wait for itself.

    Records that must run before them come first. A long queue is searched only if it may have such records: while
    something stays over its limit, every event asks.
    """
    queue = intake.queue
    queued: QueuedRecords | None = None
    if intake.pending.min() <= watermark:
        least = min(queue, key=lambda one: one.receipt.held)
        queued = least if least.receipt.held <= watermark else None
    if queued is None and feedback:
        queued = next((one for one in queue if one.receipt.delivery.stream in feedback), None)
    if queued is None or queued.receipt.delivery.order is None:
        return queued
    bring_forward(intake, queued)
    return queue[0]


def bring_forward(intake: IntervalIntake, queued: QueuedRecords) -> None:
    """Move queued records to the front, after earlier records of the same sending computation and keys (G15)."""
    delivery = queued.receipt.delivery
    keys = {delivery.keys[index] for index in queued.indexes[queued.cursor :]}
    before: list[QueuedRecords] = []
    rest: deque[QueuedRecords] = deque()
    found = False
    for one in intake.queue:
        if one is queued:
            found = True
            continue
        other = one.receipt.delivery
        if found or other.order is None or other.sender.group != delivery.sender.group:
            rest.append(one)
            continue
        left = one.indexes[one.cursor :]
        first = [index for index in left if other.keys[index] in keys]
        if first:
            before.append(QueuedRecords(one.receipt, first))
        if len(first) < len(left):
            if first:
                one.indexes, one.cursor = [index for index in left if other.keys[index] not in keys], 0
            rest.append(one)
    intake.queue.clear()
    intake.queue.extend([*before, queued, *rest])
