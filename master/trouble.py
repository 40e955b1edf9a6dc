"""What hampers the processes of a cluster, by name: stalls, broken links, failing writes, lost leases. Pure.

Each problem says which process or node it is about, since when, and what an operator does. A report that is old says
nothing here: that its worker is silent is a problem of its own, and the link or the machine may be well by now.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import Final

from millwheel.model.time import Duration, Timestamp, format_duration, seconds
from millwheel.model.wording import named
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

_MAX_LINK_PROBLEMS: Final = 20
_MAX_WRITE_PROBLEMS: Final = 20
"""The most problems of links between workers, and of errors at writing."""
_STOP: Final = "`systemctl stop millwheel-worker` on its machine; other workers take its intervals"
_FULL: Final = ("no space left", "disk full", "enospc")
"""What errors of a full disk have in common."""


def stall_problems(workers: Iterable[cluster.WorkerHealth]) -> Iterator[str]:
    """Yield a problem for each worker process that often does not get to run."""
    for one in workers:
        if one.answers and one.stalled > STALLED:
            yield (
                f"worker {one.worker_id} at {one.address} is slow: it did not get to run for {one.stalled:.0%} of the "
                f"last seconds, because its machine swaps or has no CPU left: {_STOP}"
            )


def node_problems(workers: Iterable[cluster.WorkerHealth], node_outages: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each node of the store that is down. The arguments are those of :func:`link_problems`."""
    reached = _nodes_of_workers(workers, node_outages)
    for node, outage in sorted(node_outages.items()):
        if outage >= BROKEN_SECONDS and node not in reached:
            yield (
                f"node {node} of the store has not answered for {_for(outage)}: start it, by "
                "`systemctl start cassandra` on its machine"
            )


def link_problems(workers: Sequence[cluster.WorkerHealth], node_outages: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each link that is cut, or for each process of which several are.

    Invariant: if one process does not reach many, or many do not reach one, it is named alone. So no operator stops
    those that are well, and the number of problems has a bound.

    Args:
        workers: The workers, with the links that are broken for them.
        node_outages: For how many seconds the master has not reached each node of the store; 0: it does.
    """
    addresses = {one.worker_id: one.address for one in workers}
    between: dict[tuple[str, str], float] = {}
    nodes: dict[str, dict[str, float]] = defaultdict(dict)
    for worker in workers:
        for link in worker.broken_links:
            if link.seconds < BROKEN_SECONDS or not worker.answers:
                continue
            if link.WhichOneof("peer") == "store_node":
                nodes[link.store_node][worker.worker_id] = link.seconds
            else:
                between[worker.worker_id, link.worker_id] = link.seconds
    yield from _worker_links(between, addresses)
    for node, seen in sorted(nodes.items()):
        if not node_outages.get(node):
            yield _node_link(node, seen)
    for node in sorted(_nodes_of_workers(workers, node_outages)):
        yield (
            f"the leading master has not reached node {node} of the store for {_for(node_outages[node])}, and the "
            "workers do: mend the network between them"
        )


def _worker_links(between: dict[tuple[str, str], float], addresses: Mapping[str, str]) -> Iterator[str]:
    """Yield problems of links between workers, the worker with most of them first. ``between``: seconds, by link."""
    partners: dict[str, set[str]] = defaultdict(set)
    for one, other in between:
        partners[one].add(other)
        partners[other].add(one)
    left = _MAX_LINK_PROBLEMS
    while partners and left:
        worst = min(partners, key=lambda name: (-len(partners[name]), name))
        if len(partners[worst]) < 2:
            break
        others, left = partners.pop(worst), left - 1
        longest = max(between.pop(link, 0.0) for other in others for link in ((worst, other), (other, worst)))
        for other in others:
            partners[other].discard(worst)
            if not partners[other]:
                del partners[other]
        yield (
            f"{_worker(worst, addresses)} and {_some(others)} have not reached each other for {_for(longest)}: its "
            f"machine is cut off: mend its network, or stop worker {worst}: {_STOP}"
        )
    for (one, other), outage in islice(between.items(), left):
        yield (
            f"worker {one} has not reached {_worker(other, addresses)} for {_for(outage)}: mend the network between "
            f"them, or stop worker {one}: {_STOP}"
        )
    if len(between) > left:
        yield f"{len(between) - left:,} more links between workers are cut: mend the network, and look again"


def _node_link(node: str, seen: Mapping[str, float]) -> str:
    """Describe a node of the store that the master reaches, and some workers do not. ``seen``: seconds, by worker."""
    outage = _for(max(seen.values()))
    if len(seen) > 1:
        return f"{_some(seen)} have not reached node {node} of the store for {outage}: mend the network of that node"
    (name,) = seen
    return (
        f"worker {name} has not reached node {node} of the store for {outage}, and the master does: mend the network "
        f"between them, or stop worker {name}: {_STOP}"
    )


def _nodes_of_workers(workers: Iterable[cluster.WorkerHealth], node_outages: Mapping[str, float]) -> set[str]:
    """Return the nodes that the master has not reached for long, and that all workers with a new report reach."""
    missed = {node for node, outage in node_outages.items() if outage >= BROKEN_SECONDS}
    reporting = [one for one in workers if one.answers]
    return missed.difference(link.store_node for one in reporting for link in one.broken_links) if reporting else set()


def _worker(name: str, addresses: Mapping[str, str]) -> str:
    return f"worker {name} at {addresses.get(name, 'an unknown address')}"


def _some(names: Iterable[str]) -> str:
    """Name some workers, and count the others."""
    workers = sorted(names)
    return f"{'worker' if len(workers) == 1 else 'workers'} {named(workers)}"


def write_problems(loads: Mapping[str, inspection.GetWorkerLoadResponse]) -> Iterator[str]:
    """Yield a problem for each error that keeps workers' intervals from the store. ``loads``: by worker."""
    by_error: dict[str, list[str]] = defaultdict(list)
    longest: dict[str, float] = {}
    for worker, load in sorted(loads.items()):
        if load.repeating_journals and load.repeating_seconds >= BROKEN_SECONDS:
            error = load.repeating_error
            by_error[error].append(f"{load.repeating_journals:,} of worker {worker}")
            longest[error] = max(longest.get(error, 0.0), load.repeating_seconds)
    for error in nlargest(_MAX_WRITE_PROBLEMS, by_error, key=longest.__getitem__):
        full = any(sign in error.lower() for sign in _FULL)
        remedy = "free space on that disk" if full else "see that the store runs, and that its disks are not full"
        whose = named(by_error[error])
        yield (
            f"intervals have waited for the store for {_for(longest[error])}, {whose}: {error}: {remedy}; "
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
