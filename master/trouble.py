"""What hampers the processes of a cluster, by name: stalls, broken links, failing writes, a slow store. Pure.

Each problem says which process or node it is about, since when, and what an operator does. A report that is old says
nothing here: that its worker is silent is a problem of its own, and the link or the machine may be well by now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import Final

from millwheel.model.time import format_duration, seconds
from millwheel.model.wording import named
from millwheel.rpc.v1 import cluster_pb2 as cluster
from millwheel.rpc.v1 import inspection_pb2 as inspection

__all__ = ["link_problems", "node_problems", "slow_store_problems", "stall_problems", "write_problems"]

STALLED: Final = 0.3
"""A process that is stalled for a larger share of its time is a problem."""
BROKEN_SECONDS: Final = 10.0
"""A link that is broken for longer, or a call that is repeated for longer, is a problem. A takeover takes less."""
_MAX_LINK_PROBLEMS: Final = 20
_MAX_WRITE_PROBLEMS: Final = 20
"""The most problems of links between workers, and of errors at writing."""
_STOP: Final = "`systemctl stop millwheel-worker` on its machine, and other workers take its intervals"
_DISK: Final = "look by `df -h` first, because a JVM that died by SIGBUS is a full disk, too"
_SLOW_COMMIT_SECONDS: Final = 1.0
"""A mean commit that takes longer is a problem. MillwheelStoreSlow has the same limit, for one in a hundred."""
_FULL: Final = ("no space left", "disk full", "enospc")
"""What errors of a full disk have in common."""


def stall_problems(
    workers: Iterable[cluster.WorkerHealth], leader: str = "", leader_stalled: float = 0.0
) -> Iterator[str]:
    """Yield a problem for each process that often does not get to run.

    Args:
        workers: The workers.
        leader: The address of the leading master.
        leader_stalled: The share of the last ten seconds in which it did not get to run, 0 to 1.
    """
    if leader_stalled > STALLED:
        yield (
            f"the leading master at {leader} is slow: {_stalled(leader_stalled)}. Stop what takes the CPU or the "
            "memory of its machine. If another master stands by, `systemctl stop millwheel-master` there helps at once"
        )
    for one in workers:
        if one.answers and one.stalled > STALLED:
            idle = "Now it has no intervals any more, so it delays no record: see its machine"
            remedy = f"Stop it: {_STOP}" if one.intervals else idle
            yield f"worker {one.worker_id} at {one.address} is slow: {_stalled(one.stalled)}. {remedy}"


def _stalled(share: float) -> str:
    return f"it did not get to run for {share:.0%} of the last 10 s, because its machine swaps or has no CPU left"


def slow_store_problems(commit_seconds: float) -> Iterator[str]:
    """Yield a problem if commits take long. ``commit_seconds``: their mean time, from the workers' last reports."""
    if commit_seconds > _SLOW_COMMIT_SECONDS:
        yield (
            f"a commit takes {commit_seconds:.1f} s at the store on average, so results are late. See whether one "
            "worker alone is slow. If none is, give the store what its machines lack: disk, CPU or another node"
        )


def node_problems(workers: Iterable[cluster.WorkerHealth], node_outages: Mapping[str, float]) -> Iterator[str]:
    """Yield a problem for each node of the store that is down. The arguments are those of :func:`link_problems`."""
    reached = _nodes_of_workers(workers, node_outages)
    for node, outage in sorted(node_outages.items()):
        if outage >= BROKEN_SECONDS and node not in reached:
            yield (
                f"node {node} of the store has not answered for {_for(outage)}. The work goes on while each range has "
                f"a quorum. On the machine of this address, {_DISK}. Then run `systemctl start cassandra`. The node's "
                "log has the reason"
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
            "workers do. Mend the network between them"
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
            f"{_worker(worst, addresses)} and {_some(others)} have not reached each other for {_for(longest)}. The "
            f"machine of the first one is cut off. Mend its network, or stop worker {worst}: {_STOP}"
        )
    for (one, other), outage in islice(between.items(), left):
        yield (
            f"worker {one} has not reached {_worker(other, addresses)} for {_for(outage)}. Mend the network between "
            f"them, or stop worker {one}: {_STOP}"
        )
    if len(between) > left:
        yield f"{len(between) - left:,} more links between workers are cut: mend the network, and look again"


def _node_link(node: str, seen: Mapping[str, float]) -> str:
    """Describe a node of the store that the master reaches, and some workers do not. ``seen``: seconds, by worker."""
    outage = _for(max(seen.values()))
    if len(seen) > 1:
        return f"{_some(seen)} have not reached node {node} of the store for {outage}. Mend the network of that node"
    (name,) = seen
    return (
        f"worker {name} has not reached node {node} of the store for {outage}, and the master does. Mend the network "
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
        remedy = "free space on that disk" if full else f"on the store's machines, {_DISK}. Then start what is down"
        whose, why = named(by_error[error]), error.removesuffix(".")
        yield (
            f"intervals have waited for the store for {_for(longest[error])}, {whose}: {why}. To mend it, {remedy}. "
            "The intervals then go on by themselves"
        )


def _for(duration: float) -> str:
    return format_duration(seconds(duration))
