"""Explains what holds a low watermark back: follows the holds upstream to the cause (section 4.5; G8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.client.holds.cause import HoldCause, HoldStep
from millwheel.client.holds.computations import computation_cause
from millwheel.client.holds.names import SenderNames
from millwheel.client.holds.sources import source_cause
from millwheel.client.holds.watermark import SenderWatermark, read_watermark, senders_of
from millwheel.client.shards import ShardedWatermarks
from millwheel.model.time import MAX_TIMESTAMP
from millwheel.rpc.v1 import cluster_pb2
from millwheel.rpc.v1.watermark_pb2 import HoldKind
from millwheel.rpc.watermarks import INJECTOR_PREFIX

__all__ = ["explain_chain"]

_MAX_STEPS: Final = 100
"""The maximum number of steps in one chain. A longer chain counts as a cycle."""


async def explain_chain(
    start: str, control_client: ControlClient, client: ShardedWatermarks, names: SenderNames
) -> tuple[SenderWatermark, HoldCause]:
    """Follow the holds of ``start`` upstream to a sender that waits for no other sender.

    Returns:
        The watermark of ``start``, and the cause at the end of the chain.
    """
    first = found = await read_watermark(client, start)
    chain: list[HoldStep] = []
    seen = {start}
    while len(chain) < _MAX_STEPS:
        upstream = next((one for one in _awaited_senders(found) if one not in seen), None)
        if upstream is None:
            break
        name = names.show(found.sender)
        chain.append(HoldStep(name, found.value, f"{name} waits for {names.show(upstream)}"))
        seen.add(upstream)
        found = await read_watermark(client, upstream)
    cause = await _cause(found, control_client, names)
    failing = await _failing(seen, control_client, names)
    return first, replace(cause, chain=chain, failing=failing)


def _awaited_senders(found: SenderWatermark) -> list[str]:
    """Return the senders whose watermarks hold this one."""
    row = found.row
    if row is None or row.process or row.hold.kind != HoldKind.HOLD_KIND_INPUT or found.value == MAX_TIMESTAMP:
        return []
    return senders_of(row)


async def _cause(found: SenderWatermark, client: ControlClient, names: SenderNames) -> HoldCause:
    name = names.show(found.sender)
    if found.value == MAX_TIMESTAMP:
        return HoldCause("none", name, f"nothing holds {name}: all of its input has ended")
    if found.sender.startswith(INJECTOR_PREFIX):
        return await source_cause(found, name, client)
    return await computation_cause(found, name, client, names)


async def _failing(
    senders: Iterable[str], client: ControlClient, names: SenderNames
) -> list[cluster_pb2.ComputationFailures]:
    """Return the hook failures of the computations among ``senders``, and of the consumers of the sources."""
    found: dict[tuple[str, str], cluster_pb2.ComputationFailures] = {}
    for sender in sorted(senders):
        topology, computation = names.computations.get(sender, ("", ""))
        stream = sender.removeprefix(INJECTOR_PREFIX) if sender.startswith(INJECTOR_PREFIX) else ""
        if topology or stream:
            for one in await client.hook_failures(topology, computation, stream):
                found[one.topology, one.computation] = one
    return [found[name] for name in sorted(found)]
