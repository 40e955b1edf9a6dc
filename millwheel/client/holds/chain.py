"""Explains what holds a low watermark back: follows the holds upstream to the cause (section 4.5; G8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.client.holds.cause import HoldCause, HoldStep
from millwheel.client.holds.computations import computation_cause
from millwheel.client.holds.names import GroupNames
from millwheel.client.holds.sources import source_cause
from millwheel.client.holds.watermark import GroupWatermark, groups_of, read_watermark
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.incarnation import INJECTOR_PREFIX
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1.watermark_pb2 import HoldKind

__all__ = ["explain_chain"]

_MAX_STEPS: Final = 100
"""The maximum number of steps in one chain. A longer chain counts as a cycle."""


async def explain_chain(
    start: str, control_client: ControlClient, client: ShardedWatermarks, names: GroupNames
) -> tuple[GroupWatermark, HoldCause]:
    """Follow the holds of ``start`` upstream to a group that waits for no other group.

    Returns:
        The watermark of ``start``, and the cause at the end of the chain.
    """
    first = found = await read_watermark(client, start)
    chain: list[HoldStep] = []
    seen = {start}
    cause: HoldCause | None = None
    while len(chain) < _MAX_STEPS:
        name = names.show(found.group)
        waits, awaited = name, [one for one in _awaited_groups(found) if one not in seen]
        if not awaited:
            cause = await _cause(found, control_client, names)
            waits, awaited = f"{cause.text}; {name}", [one for one in cause.awaited if one not in seen]
        if not awaited:
            break
        read = [await read_watermark(client, one) for one in awaited]
        # Of several inputs, the one that is furthest behind is the cause. One without any report comes first.
        upstream = min(read, key=lambda one: (one.value, one.row is not None))
        chain.append(HoldStep(name, found.value, f"{waits} waits for {names.show(upstream.group)}"))
        seen.add(upstream.group)
        found, cause = upstream, None
    cause = cause or await _cause(found, control_client, names)
    failing = await _failing(seen, control_client, names)
    # An owner that cannot load the code has said so itself, in the cause.
    failing = [one for one in failing if not one.absence or one.absence not in cause.text]
    return first, replace(cause, chain=chain, failing=failing)


def _awaited_groups(found: GroupWatermark) -> list[str]:
    """Return the groups whose watermarks hold this one."""
    row = found.row
    if row is None or row.process or row.hold.kind != HoldKind.HOLD_KIND_INPUT or found.value == MAX_TIMESTAMP:
        return []
    return groups_of(row)


async def _cause(found: GroupWatermark, client: ControlClient, names: GroupNames) -> HoldCause:
    name = names.show(found.group)
    if found.value == MAX_TIMESTAMP:
        return HoldCause("none", name, f"nothing holds {name}: all of its input has ended")
    if found.group.startswith(INJECTOR_PREFIX):
        return await source_cause(found, name, client)
    return await computation_cause(found, name, client, names)


async def _failing(
    groups: Iterable[str], client: ControlClient, names: GroupNames
) -> list[cluster_pb2.ComputationFailures]:
    """Return the hook failures of the computations among ``groups``, and of the consumers of the sources."""
    found: dict[tuple[str, str], cluster_pb2.ComputationFailures] = {}
    for group in sorted(groups):
        topology, computation = names.computations.get(group, ("", ""))
        stream = group.removeprefix(INJECTOR_PREFIX) if group.startswith(INJECTOR_PREFIX) else ""
        if topology or stream:
            for one in await client.hook_failures(topology, computation, stream):
                found[one.topology, one.computation] = one
    return [found[name] for name in sorted(found)]
