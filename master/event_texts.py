"""The event that a change of the catalog is, for operators: who, what, before and after. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millwheel.master.change_plan import ChangePlan
from millwheel.master.event_log import ASSIGNED, assigned_text, owner_changes
from millwheel.master.messages import (
    CancelTopology,
    DeleteLog,
    DrainTopology,
    EnsureLog,
    MergeIntervals,
    MoveInterval,
    PauseTopology,
    Request,
    ReshapeRequest,
    RestoreTopology,
    ResumeTopology,
    RetireInjector,
    RetireQuery,
    SetTopologyQuota,
    SplitInterval,
    SubmitTopology,
    UpdateTopology,
)
from millwheel.model import catalog_keys as keys
from millwheel.model.catalog import Catalog, earlier_version
from millwheel.model.incarnation import incarnation_of_journal
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.wording import state_name
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["BALANCER", "MASTER", "event_of_change"]

MASTER: Final = "master"
BALANCER: Final = "balancer"
"""The actors that are parts of the system."""


def event_of_change(
    known: Catalog,
    request: Request | None,
    actor: str,
    plan: ChangePlan,
) -> catalog.EventRecord | None:
    """Return the event of a change that is about to be made. None: operators need not know of it.

    Args:
        known: The catalog before the change.
        request: What asked for the change. None: housekeeping.
        actor: Who asked. Empty: a part of the system.
        plan: The change.
    """
    if request is None:
        return _of_housekeeping(known, plan)
    actor = actor or MASTER
    match request:
        case SubmitTopology(spec) | UpdateTopology(spec):
            return _of_version(known, spec.name, actor, plan)
        case RestoreTopology(_, record):
            event = _of_version(known, record.spec.name, actor, plan, "restored")
            if event is not None and request.renamed:
                event.text += f", a fork of {record.fork.topology}"
            return event
        case PauseTopology(name) | ResumeTopology(name) | DrainTopology(name) | CancelTopology(name):
            return _of_state(known, name, actor, plan)
        case SetTopologyQuota(name):
            return _of_quota(known, name, actor, plan)
        case MoveInterval() | SplitInterval() | MergeIntervals():
            return _of_intervals(known, request, BALANCER if actor == MASTER else actor, plan)
        case EnsureLog(stream):
            text = f"stream {stream} gets a log, which keeps its records from now on"
            return catalog.EventRecord(kind="log.created", actor=actor, subject=stream, text=text)
        case DeleteLog(stream):
            text = f"the log of stream {stream} is deleted, with its cursors"
            return catalog.EventRecord(kind="log.deleted", actor=actor, subject=stream, text=text)
        case RetireInjector(stream, process):
            text = f"injector process {process} of stream {stream} is retired"
            return catalog.EventRecord(kind="injector.retired", actor=actor, subject=stream, text=text)
        case RetireQuery(query):
            text = f"query {query} is retired"
            return catalog.EventRecord(kind="query.retired", actor=actor, subject=query, text=text)
    return None


def _written(plan: ChangePlan, name: str) -> catalog.TopologyRecord | None:
    """Return the topology's record that a plan writes."""
    key = keys.topology_key(name)
    values = [put.value for put in plan.puts if put.key == key]
    return catalog.TopologyRecord.FromString(values[0]) if values else None


def _version(record: catalog.TopologyRecord) -> str:
    return f"version {record.version}, code {record.spec.code.digest[:12]}"


def _of_version(known: Catalog, name: str, actor: str, plan: ChangePlan, verb: str = "") -> catalog.EventRecord | None:
    before, after = known.topologies.get(name), _written(plan, name)
    if after is None:
        return None
    new = before is None or after.submitted_at_us != before.submitted_at_us
    verb = verb or ("submitted" if new else "updated")
    # A rollback is an update to the version before.
    earlier = None if before is None or new else earlier_version(before)
    same = f", the same as version {earlier.version}" if earlier is not None and earlier.spec == after.spec else ""
    return catalog.EventRecord(
        kind=f"topology.{verb}",
        actor=actor,
        topology=name,
        text=f"topology {name} is {verb}: version {after.version}{same}",
        before="" if before is None or new else _version(before),
        after=_version(after),
    )


def _of_state(known: Catalog, name: str, actor: str, plan: ChangePlan) -> catalog.EventRecord | None:
    before, after = known.topologies.get(name), _written(plan, name)
    if before is None or after is None or before.state == after.state:
        return None
    word = "resumed" if after.state == catalog.TOPOLOGY_STATE_RUNNING else state_name(after.state)
    return catalog.EventRecord(
        kind=f"topology.{word}",
        actor=actor,
        topology=name,
        text=f"topology {name} is {word}",
        before=state_name(before.state),
        after=state_name(after.state),
    )


def _of_quota(known: Catalog, name: str, actor: str, plan: ChangePlan) -> catalog.EventRecord | None:
    before, after = known.topologies.get(name), _written(plan, name)
    if before is None or after is None:
        return None
    return catalog.EventRecord(
        kind="topology.limited",
        actor=actor,
        topology=name,
        text=f"topology {name} gets another quota",
        before=_quota(before.quota),
        after=_quota(after.quota),
    )


def _quota(quota: catalog.TopologyQuota) -> str:
    parts = [f"weight {quota.weight or 1:g}"]
    if quota.records_per_second:
        parts.append(f"{quota.records_per_second:,} records/s")
    if quota.intervals:
        parts.append(f"{quota.intervals:,} intervals")
    return ", ".join(parts)


def _of_intervals(known: Catalog, request: ReshapeRequest, actor: str, plan: ChangePlan) -> catalog.EventRecord | None:
    if not plan.before:
        return None
    verbs = {MoveInterval: "moved", SplitInterval: "split", MergeIntervals: "merged"}
    verb = verbs[type(request)]
    incarnation = incarnation_of_journal(plan.before[0].journal)
    interval_map = known.maps.get(incarnation)
    computation, topology = interval_map.origin if interval_map is not None else ("", "")
    subject = computation or incarnation
    moved = " and ".join(str(interval_from_proto(one.keys)) for one in plan.before)
    return catalog.EventRecord(
        kind=f"interval.{verb}",
        actor=actor,
        topology=topology,
        subject=subject,
        text=f"keys {moved} of {f'{topology}/{subject}' if topology else subject} are {verb}",
        before=_shown(plan.before),
        after=_shown(plan.after),
    )


def _shown(intervals: Sequence[catalog.IntervalRecord]) -> str:
    return "; ".join(f"{interval_from_proto(one.keys)} at {one.owner.worker_id or 'no worker'}" for one in intervals)


def _of_housekeeping(known: Catalog, plan: ChangePlan) -> catalog.EventRecord | None:
    """Only what ends a drain, and assignments, are of interest."""
    if plan.owners:
        owners = owner_changes(((before, after), count) for before, after, count in plan.owners)
        return catalog.EventRecord(kind=ASSIGNED, actor=MASTER, text=assigned_text(owners), owners=owners)
    for put in plan.puts:
        kind, names = keys.split_key(put.key)
        if kind == keys.TOPOLOGIES:
            return _of_state(known, names[0], MASTER, plan)
    return None
