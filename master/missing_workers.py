"""Workers that were stopped in order within the last hour, and have not come back, by the log of events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from millwheel.master.event_watch import JOINED, LEFT, LOST
from millwheel.model.time import Timestamp, minutes
from millwheel.model.wording import clock_time, named
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster

__all__ = ["missing_text", "missing_workers"]

_WITHIN: Final = minutes(60)
"""A worker that left earlier is not missed: the cluster has become smaller."""


def missing_workers(
    events: Iterable[catalog.EventRecord], present: Collection[str], now: Timestamp
) -> list[cluster.DepartedWorker]:
    """Return the workers that left and are not back, in the order in which they left.

    Where each start of a worker has another name, a new one stands for the one that left first.

    Args:
        events: The events in the log, the oldest first.
        present: The names of the registered workers.
        now: The wall time.
    """
    gone: dict[str, catalog.EventRecord] = {}
    lost = set[str]()
    for event in events:
        if event.kind == LEFT:
            gone.pop(event.subject, None)
            gone[event.subject] = event
        elif event.kind == LOST:
            lost.add(event.subject)
        elif event.kind == JOINED and event.subject in lost:
            lost.discard(event.subject)
        elif event.kind == JOINED and gone.pop(event.subject, None) is None and gone:
            del gone[next(iter(gone))]
    return [
        cluster.DepartedWorker(worker_id=name, address=event.before, left_at_us=event.at_us)
        for name, event in gone.items()
        if now - event.at_us <= _WITHIN and name not in present
    ]


def missing_text(missing: Sequence[cluster.DepartedWorker]) -> str:
    """Describe the missing workers: at least one."""
    first, last = clock_time(missing[0].left_at_us), clock_time(missing[-1].left_at_us)
    at = f"at {first}" if first == last else f"from {first} to {last}"
    have = "has" if len(missing) == 1 else "have"
    return f"{named([one.worker_id for one in missing])} stopped in order {at} and {have} not come back"
