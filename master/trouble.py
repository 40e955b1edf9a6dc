"""What hampers the processes of a cluster, by name: stalls, broken links, failing writes, lost leases. Pure.

Each problem says which process or node it is about, since when, and what an operator does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from millwheel.model.time import Duration, Timestamp, format_duration, seconds
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["leader_problems", "link_problems", "node_problems", "stall_problems", "write_problems"]

STALLED: Final = 0.3
"""A process that is stalled for a larger share of its time is a problem."""
BROKEN_SECONDS: Final = 10.0
"""A link that is broken for longer, or a call that is repeated for longer, is a problem. A takeover takes less."""
ELECTION_WINDOW: Final[Duration] = seconds(900)
STEADY: Final[Duration] = seconds(300)
"""A master that has led for longer is no problem any more."""
MAX_ELECTIONS: Final = 2
"""More elections than these within that time are a problem. A restart of all masters, one by one, takes two."""

_STOP: Final = "`systemctl stop millwheel-worker` on its machine; other workers take its intervals"
_FULL: Final = ("no space left", "disk full", "enospc")
"""What errors of a full disk have in common."""


def stall_problems(workers: Iterable[cluster.WorkerHealth]) -> Iterator[str]:
    """Yield a problem for each worker process that often does not get to run."""
    for one in workers:
        if one.stalled > STALLED:
            yield (
                f"worker {one.worker_id} at {one.address} is slow: it did not get to run for {one.stalled:.0%} of the "
                f"last seconds, because its machine swaps or has no CPU left: {_STOP}"
            )


def node_problems(node_outages: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each node of the store that is down. ``node_outages``: as in :func:`link_problems`."""
    down = {node: outage for node, outage in node_outages.items() if outage >= BROKEN_SECONDS}
    for node, outage in sorted(down.items()):
        yield (
            f"node {node} of the store has not answered for {_for(outage)}: start it, by `systemctl start cassandra` "
            "on its machine"
        )


def link_problems(workers: Sequence[cluster.WorkerHealth], node_outages: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each link that is cut.

    Args:
        workers: The workers, with the links that are broken for them.
        node_outages: For how many seconds the master has not reached each node of the store; 0: it does.
    """
    addresses = {one.worker_id: one.address for one in workers}
    nodes: dict[str, dict[str, float]] = defaultdict(dict)
    for worker in workers:
        for link in worker.broken_links:
            if link.seconds < BROKEN_SECONDS:
                continue
            if link.WhichOneof("peer") == "store_node":
                nodes[link.store_node][worker.worker_id] = link.seconds
                continue
            peer = f"{link.worker_id} at {addresses.get(link.worker_id, 'an unknown address')}"
            yield (
                f"worker {worker.worker_id} has not reached worker {peer} for {_for(link.seconds)}: mend the network "
                f"between them, or stop worker {worker.worker_id}: {_STOP}"
            )
    for node, seen in sorted(nodes.items()):
        for worker_id, outage in sorted(seen.items()) if not node_outages.get(node) else ():
            yield (
                f"worker {worker_id} has not reached node {node} of the store for {_for(outage)}, and the master does: "
                f"mend the network between them, or stop worker {worker_id}: {_STOP}"
            )


def write_problems(loads: Mapping[str, inspection.GetWorkerLoadResponse]) -> Iterator[str]:
    """Yield a problem for each error that keeps workers' intervals from the store. ``loads``: by worker."""
    by_error: dict[str, list[str]] = defaultdict(list)
    longest: dict[str, float] = {}
    for worker, load in sorted(loads.items()):
        if load.repeating_journals and load.repeating_seconds >= BROKEN_SECONDS:
            error = load.repeating_error
            by_error[error].append(f"{load.repeating_journals:,} of worker {worker}")
            longest[error] = max(longest.get(error, 0.0), load.repeating_seconds)
    for error, whose in by_error.items():
        full = any(sign in error.lower() for sign in _FULL)
        remedy = "free space on that disk" if full else "see that the store runs, and that its disks are not full"
        yield (
            f"intervals have waited for the store for {_for(longest[error])}, {', '.join(whose)}: {error}: {remedy}; "
            "they go on by themselves"
        )


def leader_problems(
    events: Iterable[catalog.EventRecord], masters: Mapping[str, catalog.MasterRecord], now: Timestamp
) -> Iterator[str]:
    """Yield a problem if the leading master changes often, with what is known of each master.

    Args:
        events: The events in the log, the oldest first.
        masters: The registered masters, by address.
        now: The wall time.
    """
    elections = [one for one in events if one.kind == "master.elected"]
    recent = [one for one in elections[1:] if now - one.at_us <= ELECTION_WINDOW]
    if len(recent) <= MAX_ELECTIONS or now - recent[-1].at_us > STEADY:
        return
    known = []
    for address, record in sorted(masters.items()):
        if record.interruption and now - record.interrupted_at_us <= ELECTION_WINDOW:
            known.append(f"{address} lost its lease at {_clock(record.interrupted_at_us)}: {record.interruption}")
        elif now - record.started_at_us <= ELECTION_WINDOW:
            known.append(f"{address} was started at {_clock(record.started_at_us)}: its log says why it had ended")
    why = "; ".join(known) or "their logs say why"
    yield (
        f"the leading master has changed {len(recent)} times within {_for(ELECTION_WINDOW / 1e6)}: {why}. Give their "
        "machines CPU, or set a larger `master.lease_seconds` and run `systemctl restart millwheel-master` on each"
    )


def _for(duration: float) -> str:
    return format_duration(seconds(duration))


def _clock(at: int) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at / 1e6)) + " UTC"
