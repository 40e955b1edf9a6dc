"""Why the low watermark of a computation stands: what its interval waits for, by its report and by its owner."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final, TypeAlias

import grpc

from millwheel.client.control import ControlClient
from millwheel.client.holds.cause import HoldCause, and_paused
from millwheel.client.holds.names import GroupNames
from millwheel.client.holds.watermark import GroupWatermark, kind_name
from millwheel.model.catalog import ACTIVE_STATES
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.wording import state_name
from millwheel.rpc.channel import open_channel
from millwheel.rpc.hook_failures import blocks, computation_text, names_remedy
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1.cluster_pb2 import CONNECTOR_PART_UNSPECIFIED
from millwheel.rpc.v1.inspection_pb2 import GetIntervalStatusRequest, GetIntervalStatusResponse
from millwheel.rpc.v1.inspection_pb2_grpc import InspectionServiceStub
from millwheel.rpc.v1.watermark_pb2 import HoldKind

__all__ = ["computation_cause"]

_OWNER: Final = "its owner"
_TOPOLOGY: Final = "its topology is"
_OWNER_SECONDS: Final = 5.0
"""How long an owner may take to answer."""
_FIX: Final = "fix the computation's code, or what it is sent, then `millwheel topology update`"
_WORDS: Final = {
    HoldKind.HOLD_KIND_INPUT: "nothing of its own holds it, so it goes on as its input does",
    HoldKind.HOLD_KIND_RECORD: "a record that it received is not committed",
    HoldKind.HOLD_KIND_PRODUCTION: "a production is not ACKed by its consumer",
    HoldKind.HOLD_KIND_TIMER: "a timer that is due has not fired",
    HoldKind.HOLD_KIND_STATE: "a hold on state, or of a timer",
    HoldKind.HOLD_KIND_INJECTOR: "an injector",
}

_Owner: TypeAlias = GetIntervalStatusResponse | str
"""The status of the holding interval from its owner, or a text that says why there is no status."""


async def computation_cause(found: GroupWatermark, name: str, client: ControlClient, names: GroupNames) -> HoldCause:
    """Return why the watermark of the computation ``name`` stands."""
    row = found.row
    owner = await _ask_owner(found, client, names)
    if row is None or row.hold.kind in (HoldKind.HOLD_KIND_SILENT, HoldKind.HOLD_KIND_UNSPECIFIED):
        return _silent(found, name, owner)
    interval = str(interval_from_proto(row.keys))
    # The row shows the hold at the last change of the watermark. The owner's status shows the hold now.
    hold = row.hold if isinstance(owner, str) else owner.hold
    shown = names.in_words(hold.subject)
    text = f"{name}, interval {interval}: {_WORDS[hold.kind]}" + (f": {shown}" if shown else "")
    awaited = [] if isinstance(owner, str) else list(owner.awaited_groups)
    cause = HoldCause(kind_name(hold.kind), name, text, interval=interval, subject=shown, awaited=awaited)
    if isinstance(owner, str):
        if owner.startswith(_TOPOLOGY):
            return replace(cause, text=f"{text}; {owner}")
    elif blocks(owner.failures, owner.stopped):
        now, part = time.time_ns() // 1_000, names.parts.get(found.group, CONNECTOR_PART_UNSPECIFIED)
        cause.notes.append(computation_text(name, owner.failures, owner.stopped, now, part=part))
        if not names_remedy(owner.failures, owner.stopped):
            cause = replace(cause, remedy=_FIX)
    if hold.kind == HoldKind.HOLD_KIND_PRODUCTION:
        return await _unacked(cause, hold.subject, client, names)
    return cause


async def _unacked(cause: HoldCause, subject: str, client: ControlClient, names: GroupNames) -> HoldCause:
    """Add to the cause why the consumer that ``subject`` names has not ACKed the production."""

    def is_consumer(incarnation: str) -> bool:
        return f"for consumer {incarnation!r}" in subject

    consumers = [place for incarnation, place in names.computations.items() if is_consumer(incarnation)]
    reported = [one for place in consumers for one in await client.hook_failures(*place)]
    # A production already has its key. So a key function that raises cannot delay the production's ACK.
    failing = [one for one in reported if blocks(one.failures, one.stopped)]
    open_ended = any(not names_remedy(one.failures, one.stopped) for one in failing)
    cause = replace(
        cause,
        notes=[*cause.notes, *(one.text for one in failing)],
        remedy=_FIX if open_ended else cause.remedy,
    )
    return await and_paused(cause, client, lambda record: any(map(is_consumer, record.incarnations.values())))


def _silent(found: GroupWatermark, name: str, owner: _Owner) -> HoldCause:
    interval = str(interval_from_proto(found.row.keys)) if found.row is not None else ""
    where = f"{name}, interval {interval}" if found.row is not None else name
    if isinstance(owner, str):
        remedy = "look at its worker's log" if owner.startswith(_OWNER) else ""
        return HoldCause("silent", name, f"{where}: {owner}", remedy, interval)
    text = f"{where}: its owner runs, and has not reported since it took over"
    return HoldCause("silent", name, text, "ask again in a moment", interval)


async def _ask_owner(found: GroupWatermark, client: ControlClient, names: GroupNames) -> _Owner:
    topology, _ = names.computations.get(found.group, ("", ""))
    if not topology:
        return "no topology that is known has it"
    known = await client.get_topology(topology)
    if known.topology.state not in ACTIVE_STATES:
        how = f"{_TOPOLOGY} {state_name(known.topology.state)}"
        paused = known.topology.state == catalog.TOPOLOGY_STATE_PAUSED
        return f"{how}; `millwheel topology resume {topology}` lets it go on" if paused else how
    interval = _interval_of(known, found)
    if interval is None or not interval.owner.address:
        return "no worker owns it"
    try:
        async with open_channel(interval.owner.address) as channel:
            request = GetIntervalStatusRequest(journal=interval.journal)
            return await InspectionServiceStub(channel).GetIntervalStatus(request, timeout=_OWNER_SECONDS)
    except grpc.aio.AioRpcError as error:
        return f"{_OWNER}, worker {interval.owner.worker_id!r} at {interval.owner.address}, says: {error.details()}"


def _interval_of(known: control.GetTopologyResponse, found: GroupWatermark) -> catalog.IntervalRecord | None:
    """Return the interval whose row holds a watermark. Without a row, return the computation's first interval."""
    name = next((name for name, one in known.topology.incarnations.items() if one == found.group), "")
    for record in known.interval_maps:
        if record.computation == name and record.topology:
            for interval in record.intervals:
                if found.row is None or interval.keys == found.row.keys:
                    return interval
    return None
