"""Workers that were stopped in order within the last hour, and have not come back, by the log of events. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from millwheel.master.event_watch import JOINED, LEFT, LOST
from millwheel.model.time import Timestamp, minutes
from millwheel.model.wording import clock_time, named
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster

__all__ = ["missing_text", "missing_workers"]

_WITHIN: Final = minutes(60)
"""A worker that left earlier is not missed: the cluster has become smaller."""
_OVERLAP: Final = minutes(10)
"""A worker joins at most so long before the one that it replaces leaves."""
_TOGETHER: Final = minutes(1)
"""Workers that joined within so long of each other replace none of these."""


def missing_workers(
    events: Iterable[catalog.EventRecord], present: Collection[str], now: Timestamp
) -> list[cluster.DepartedWorker]:
    """Return the workers that left and are not back, in the order in which they left.

    Where each start of a worker has another name, a new one stands for the one that left first. It may also have come
    before the one that it replaces left.

    Args:
        events: The events in the log, the oldest first.
        present: The names of the registered workers.
        now: The wall time.
    """
    gone: dict[str, catalog.EventRecord] = {}
    lost = set[str]()
    began, spare = dict[str, int](), dict[str, int]()
    for event in events:
        name = event.subject
        if event.kind == LEFT:
            gone.pop(name, None)
            spare.pop(name, None)
            if (successor := _successor(began.get(name), spare, event.at_us)) is not None:
                del spare[successor]
            else:
                gone[name] = event
        elif event.kind == LOST:
            lost.add(name)
            spare.pop(name, None)
        elif event.kind == JOINED:
            began[name] = event.at_us
            if name in lost:
                lost.discard(name)
            elif gone.pop(name, None) is None:
                if gone:
                    del gone[next(iter(gone))]
                else:
                    spare[name] = event.at_us
    return [
        cluster.DepartedWorker(worker_id=name, address=event.before, left_at_us=event.at_us)
        for name, event in gone.items()
        if now - event.at_us <= _WITHIN and name not in present
    ]


def _successor(began: int | None, spare: Mapping[str, int], left: int) -> str | None:
    """Return the worker that joined in place of one that left later; None if there is none.

    Workers that joined at about the same time are those of a cluster's first start.

    Args:
        began: When the one that left had joined. None: earlier than the log goes back.
        spare: When workers joined that have taken no other's place.
        left: When it left.
    """
    for name, joined in spare.items():
        if left - joined <= _OVERLAP and (began is None or joined - began > _TOGETHER):
            return name
    return None


def missing_text(missing: Sequence[cluster.DepartedWorker]) -> str:
    """Describe the missing workers: at least one."""
    first, last = clock_time(missing[0].left_at_us), clock_time(missing[-1].left_at_us)
    at = f"at {first}" if first == last else f"from {first} to {last}"
    have = "has" if len(missing) == 1 else "have"
    return f"{named([one.worker_id for one in missing])} stopped in order {at} and {have} not come back"
