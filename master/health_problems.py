"""What needs an operator, each with the place that shows its cause and the section of docs/runbook.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from millwheel.master.load_book import LoadBook
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog
from millwheel.model.incarnation import IncarnationId, incarnation_of_journal
from millwheel.rpc.v1 import cluster_pb2 as wire

__all__ = ["cluster_problems", "damage_problems", "health_problem", "hook_problems"]

_STORE = "MillwheelStoreFailing"
_PROCESS = "MillwheelProcessDown"
_STRANDED = "MillwheelIntervalsStranded"
_STUCK = "MillwheelWorkStuck"
_DAMAGED = "MillwheelDataDamaged"
_HOOK = "MillwheelHookFailing"
_LEASED = "it ends after the process that wrote it. If that one runs, restart it, so that it writes the value again"

_Names = Mapping[IncarnationId, tuple[str, str]]
"""Topology and computation of incarnations."""


def cluster_problems(
    health: wire.GetClusterHealthResponse, in_use: bool, backlogs: Sequence[str] = ()
) -> Iterator[wire.HealthProblem]:
    """Yield the problems of processes, of intervals without an owner and of hot keys.

    Args:
        health: What is known of all processes, and the hot keys.
        in_use: Whether topologies exist.
        backlogs: What waits for each of the hot keys. Empty texts: nothing is known to wait.
    """
    if not health.store.answers:
        yield health_problem(f"the state store does not answer: {health.store.error}", _STORE)
    for authority in health.authorities:
        if not authority.address:
            text = f"no process serves authority shard {authority.shard}: start `millwheel authority run`"
            yield health_problem(text, _PROCESS)
        elif not authority.answers:
            yield health_problem(f"authority shard {authority.shard} at {authority.address} does not answer", _PROCESS)
    if not health.workers and in_use:
        yield health_problem("there are no workers: start `millwheel worker run`", _STRANDED)
    for worker in health.workers:
        if not worker.answers:
            text = f"worker {worker.worker_id} at {worker.address} has reported no load lately: look at its log"
            yield health_problem(text, _PROCESS)
    if health.intervals.without_owner and health.workers:
        yield health_problem(
            f"{health.intervals.without_owner:,} of {health.intervals.all:,} intervals have no owner: "
            "no worker may run their code, or they are just being given to one",
            _STRANDED,
        )
    for at, hot in enumerate(health.hot_keys):
        waits = f" {backlogs[at]}." if at < len(backlogs) and backlogs[at] else ""
        key = hot.key.decode("utf-8", "backslashreplace")
        yield health_problem(
            f"key {key!r} of {hot.topology}/{hot.computation} keeps its interval busy for {hot.busy:.0%} of the time, "
            f"computing or waiting, and no split relieves that.{waits} Nothing is lost, and keys of other intervals go "
            "on. See what its hook waits for. Have the hook made cheaper for this key, or the key aggregated in two "
            f"phases (`spread=`). If an update made it slow, `millwheel topology rollback {hot.topology}` goes back",
            _STUCK,
            hot.topology,
            hot.computation,
            key=hot.key,
        )


def damage_problems(known: Catalog, book: LoadBook, names: _Names) -> Iterator[wire.HealthProblem]:
    """Yield the damaged stored values found so far, each with a remedy."""
    remedy = "restore it from a snapshot or a replica"
    for key, why in sorted(known.damaged.items()):
        mend = _LEASED if key.startswith(keys.LEASED) else remedy
        text = f"the coordinator's value {key} is damaged ({why}), and nothing is done with it: {mend}"
        yield health_problem(text, _DAMAGED)
    for journal, load in book.troubled:
        place = names.get(incarnation_of_journal(journal), ("", ""))
        if load.quarantined:
            text = (
                f"interval {journal} is quarantined: {load.damage}; {remedy}, then `millwheel interval move {journal}`"
            )
            yield health_problem(text, _DAMAGED, *place, journal)
        elif load.damaged_rows:
            text = f"interval {journal} met {load.damaged_rows:,} damaged rows, such as {load.damage}: {remedy}"
            yield health_problem(text, _DAMAGED, *place, journal)


def hook_problems(failures: Iterable[wire.ComputationFailures]) -> Iterator[wire.HealthProblem]:
    """Yield the computations whose hooks raise, or whose code cannot run."""
    for one in failures:
        yield health_problem(one.text, _STRANDED if one.absence else _HOOK, one.topology, one.computation)


def health_problem(
    text: str, runbook: str, topology: str = "", computation: str = "", journal: str = "", key: bytes = b""
) -> wire.HealthProblem:
    """A problem with its section of the runbook, and what it is about."""
    return wire.HealthProblem(
        text=text, runbook=runbook, topology=topology, computation=computation, journal=journal, key=key
    )
