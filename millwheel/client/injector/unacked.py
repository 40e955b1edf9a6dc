"""Questions about an injector's un-ACKed records, for users, operators and the authority (sections 5.2, 7.2). Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from millwheel.client.injector.core import InjectorCore
from millwheel.client.injector.ids import IdScope
from millwheel.client.injector.routing import Route
from millwheel.model.incarnation import IncarnationId
from millwheel.model.sketch import TimestampSketch
from millwheel.rpc.watermarks import PendingWork

__all__ = [
    "SentRecords",
    "oldest_route",
    "pending_work",
    "unacked_by_consumer",
    "unacked_ids",
    "unacked_records",
]


class SentRecords(NamedTuple):
    """Records that were sent together: their ids, unique in ``scope``. ``end``: how many were accepted up to them."""

    scope: IdScope
    ids: frozenset[int | bytes]
    end: int


def unacked_records(core: InjectorCore) -> int:
    """Records that at least one consumer has not ACKed, each counted once."""
    return sum(map(len, unacked_ids(core).values()))


def unacked_ids(core: InjectorCore) -> dict[IdScope, set[Any]]:
    """The ids of the records that at least one consumer has not ACKed, by the scope in which they are unique."""
    found: dict[IdScope, set[Any]] = {}
    for queue in core.outbound.queues():
        ids = found.setdefault(queue.scope, set())
        for batch in queue.all_batches():
            ids.update(batch.ids[at] for at in batch.indexes())
    for scope, waiting in core.unkeyed.ids():
        found.setdefault(scope, set()).update(waiting)
    return found


def unacked_by_consumer(core: InjectorCore) -> dict[IncarnationId, int]:
    """The number of un-ACKed records of each consumer. A consumer without any is left out."""
    found = {name: count for name, (count, _) in core.unkeyed.consumers().items()}
    for queue in core.outbound.queues():
        count = sum(batch.count() for batch in queue.all_batches())
        if count:
            found[queue.consumer] = found.get(queue.consumer, 0) + count
    return found


def oldest_route(core: InjectorCore, consumer: IncarnationId) -> Route | None:
    """The interval of ``consumer`` that the oldest outbound record goes to. None if no record is outbound."""
    queues = [queue for queue in core.outbound.queues() if queue.consumer == consumer and not queue.empty]
    oldest = min(queues, key=lambda queue: next(queue.all_batches()).first, default=None)
    return None if oldest is None else oldest.route


def pending_work(core: InjectorCore) -> PendingWork:
    """The timestamps of un-ACKed records, one for each consumer, and the newest accepted timestamp (7.2)."""
    sketch = TimestampSketch()
    for queue in core.outbound.queues():
        for batch in queue.all_batches():
            sketch.add((batch.timestamps[index], 1) for index in batch.indexes())
    sketch.add((timestamp, 1) for timestamp in core.unkeyed.timestamps())
    return PendingWork(sketch, core.newest)
