"""GetOverview and ExplainHold of ClusterService: what an operator's page shows, and why a watermark stands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.client.holds.chain import explain_chain
from millwheel.client.holds.names import GroupNames
from millwheel.client.holds.watermark import GroupWatermark, held_by, open_authority
from millwheel.client.owned_intervals import incarnation_of
from millwheel.master.hook_failures import hook_failures
from millwheel.master.overview import OverviewRows
from millwheel.master.replica import MasterReplica
from millwheel.master.services.injection import list_injectors
from millwheel.master.silences import injected_groups
from millwheel.master.topology_plans import refuse_unknown_topology
from millwheel.model.catalog import LIVE_STATES
from millwheel.model.incarnation import injector_group
from millwheel.rpc.clock import wall_now
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import watermark_pb2 as watermarks

__all__ = ["explain_hold", "overview"]

_EXPLAIN_SECONDS: Final = 5.0
"""The time limit of each call that a chain of holds takes."""


async def overview(
    replica: MasterReplica,
    request: wire.GetOverviewRequest,
    health: Callable[[Awaitable[Mapping[str, watermarks.GroupExplanation]]], Awaitable[wire.GetClusterHealthResponse]],
) -> wire.GetOverviewResponse:
    """Answer GetOverview. NOT_FOUND if there is no topology of the name in the request.

    ``health`` returns the health of the cluster, by what the authority says of groups. It is asked once for both.
    """
    term = await replica.term()
    known = term.catalog
    if request.topology and request.topology not in known.topologies:
        refuse_unknown_topology(request.topology, known)
    records = [one for name, one in sorted(known.topologies.items()) if request.topology in ("", name)]
    groups = {*_groups(records), *injected_groups(known)}
    explaining = asyncio.ensure_future(replica.observer.explain_all(known, groups))
    healthy, explained, injected = await asyncio.gather(health(explaining), explaining, list_injectors(replica, known))
    names = GroupNames.from_records(known.topologies.values())
    rows = OverviewRows(
        known,
        replica.book,
        {group: _watermark(one, names) for group, one in explained.items()},
        hook_failures(known, replica.book, wall_now(), topology=request.topology),
    )
    return wire.GetOverviewResponse(
        now_us=wall_now(),
        topologies=[rows.topology(one, term.core.waiting_for(one.spec.name)) for one in records],
        injectors=injected,
        health=healthy,
    )


def _groups(records: Iterable[catalog.TopologyRecord]) -> list[str]:
    """Return the groups of topologies that have not ended: those of computations and of injected streams."""
    groups = dict[str, None]()
    for record in records:
        if record.state in LIVE_STATES:
            groups |= dict.fromkeys(record.incarnations.values())
            groups |= dict.fromkeys(injector_group(stream.name) for stream in record.spec.streams if stream.injected)
    return list(groups)


def _watermark(one: watermarks.GroupExplanation, names: GroupNames) -> wire.WatermarkOverview:
    row = one.holding if one.HasField("holding") else None
    return wire.WatermarkOverview(
        low_watermark_us=one.watermark_us,
        kind=one.holding.hold.kind,
        held_by=held_by(GroupWatermark(one.group, one.watermark_us, row), names),
    )


async def explain_hold(replica: MasterReplica, request: wire.ExplainHoldRequest) -> wire.ExplainHoldResponse:
    """Answer ExplainHold. NOT_FOUND if there is no such computation."""
    await replica.term()
    async with ControlClient(replica.address, deadline=_EXPLAIN_SECONDS) as client:
        group = incarnation_of((await client.get_topology(request.topology)).topology, request.computation)
        names = GroupNames.from_records(await client.list_topologies())
        async with await open_authority(client, _EXPLAIN_SECONDS) as authority:
            found, cause = await explain_chain(group, client, authority, names)
    return wire.ExplainHoldResponse(
        low_watermark_us=found.value,
        chain=[wire.HoldStep(name=one.name, low_watermark_us=one.value, text=one.text) for one in cause.chain],
        kind=cause.kind,
        name=cause.name,
        cause=cause.text,
        notes=cause.notes,
        remedy=cause.remedy,
        failing=cause.failing,
    )
