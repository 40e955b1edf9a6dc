"""Waits until a change of a topology is done."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from millwheel.client.control import ControlClient
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.stream_names import owner_of
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2

__all__ = ["wait_for_update", "wait_until_running"]

_POLL_SECONDS: Final = 0.1
_LOAD_POLL_SECONDS: Final = 0.5
"""A master asks workers for their loads every two seconds."""
_MAX_NAMED: Final = 3


async def wait_for_update(client: ControlClient, record: catalog.TopologyRecord, wait: float) -> catalog.TopologyRecord:
    """Wait until a topology's updates are complete. RequestError: they are not complete after ``wait`` seconds."""
    name, end = record.spec.name, time.monotonic() + wait
    while True:
        found = await client.get_topology(name)
        waits = found.topology.switching or found.topology.removed
        if not waits or found.topology.version != record.version:
            return found.topology
        if time.monotonic() >= end:
            raise RequestError(
                FailureCode.DEADLINE_EXCEEDED,
                f"topology {name!r} still changes to version {record.version} after {wait:g} s, waiting for "
                + ("; ".join(found.waiting_for) or "the master"),
                "it goes on changing; `millwheel topology describe` shows how far it is",
            )
        await asyncio.sleep(_POLL_SECONDS)


async def wait_until_running(client: ControlClient, name: str, wait: float) -> None:
    """Wait until owners serve all intervals of a topology. RequestError: not all are served after ``wait`` seconds."""
    end = time.monotonic() + wait
    while waiting := [text for one in await _intervals(client, name) if (text := _not_running(one))]:
        if time.monotonic() >= end:
            named = "; ".join(waiting[:_MAX_NAMED]) + ("; …" if len(waiting) > _MAX_NAMED else "")
            raise RequestError(
                FailureCode.DEADLINE_EXCEEDED,
                f"topology {name!r} is submitted, and {len(waiting)} of its intervals do not run after {wait:g} s: "
                f"{named}",
                "it goes on starting; `millwheel interval list` and `millwheel cluster health` show how far it is",
            )
        await asyncio.sleep(_LOAD_POLL_SECONDS)


async def _intervals(client: ControlClient, name: str) -> list[interval_pb2.IntervalStatus]:
    """Return the intervals of a topology's computations, and of the logs of its streams."""
    return [one for one in await client.list_intervals() if name in (one.topology, owner_of(one.stream))]


def _not_running(one: interval_pb2.IntervalStatus) -> str:
    """Return which interval does not run, and why. Empty if its present owner serves it."""
    whose = f"log of {one.stream}" if one.stream else f"{one.topology}/{one.computation}"
    which = f"{whose} {interval_from_proto(one.interval.keys)}"
    if not one.interval.HasField("owner"):
        return f"{which} has no owner"
    if not one.HasField("load") or one.load.sequencer != one.interval.sequencer:
        return f"{which} has been given to worker {one.interval.owner.worker_id!r}, which has not reported it"
    if one.load.quarantined:
        return f"{which} is quarantined: {one.load.damage}"
    if one.load.absence:
        return f"{which} does not run: {one.load.absence}"
    if one.load.stopped:
        return f"{which} has stopped: {one.load.stopped}"
    return "" if one.load.serving else f"{which} waits for the authority"
