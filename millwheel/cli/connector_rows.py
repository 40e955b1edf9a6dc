"""``millwheel connectors show``: the sources and sinks of running topologies, and how far each is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

from millwheel.cli.connector_names import name_of
from millwheel.cli.options import DEFAULT_ADDRESS, Address, AnyTopology, Output, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.model.catalog import LIVE_STATES
from millwheel.model.time import MAX_TIMESTAMP, Duration, Timestamp, format_duration, format_timestamp, seconds
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import cluster_pb2 as wire
from millwheel.rpc.v1 import key_pb2 as keys

__all__ = ["connector_row", "first_part", "listed_row", "print_rows", "show"]

_PAGE: Final = 1_000
_CALLS_AT_ONCE: Final = 8
_FIRST_PARTS: Final = (wire.CONNECTOR_PART_FINDS_SPLITS, wire.CONNECTOR_PART_MAKES_BATCHES)
_READER: Final = "-reader"
"""The end of the name of the computation that reads the splits of a stream."""


def show(
    topology: AnyTopology = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Show the sources and sinks of running topologies: splits or shards, records, how far behind, and errors.

    CONNECTOR is the name in `millwheel connectors list`. RECORDS were read or written, and BAD are those among them
    that could not be read. BEHIND: records that wait in the splits of a source, after their last reads; records and
    batches that wait at a sink, and for how long. NEWEST: how long ago the last record was read, or the last batch
    written. STATE is `ended` once nothing will come any more.

    `millwheel key list TOPOLOGY/STREAM-reader` and `millwheel key list TOPOLOGY/SINK` have the splits and the shards.

    Example: millwheel connectors show shop
    """

    async def work(client: ControlClient) -> tuple[int, list[dict[str, Any]]]:
        overview = await client.call(
            "/millwheel.v1.ClusterService/GetOverview",
            wire.GetOverviewRequest(topology=topology),
            wire.GetOverviewResponse,
        )
        gate = asyncio.Semaphore(_CALLS_AT_ONCE)

        async def row(name: str, one: wire.ComputationOverview, first: wire.ComputationOverview) -> dict[str, Any]:
            async with gate:
                return await listed_row(client, name, one, first)

        ends = (wire.CONNECTOR_PART_READS, wire.CONNECTOR_PART_WRITES)
        asked = [
            row(found.name, one, first_part(found, one))
            for found in overview.topologies
            if found.state in LIVE_STATES
            for one in found.computations
            if one.connector in ends
        ]
        return overview.now_us, list(await asyncio.gather(*asked))

    now, rows = ask(work, address, timeout)
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    print_rows(rows, now, _none(topology))


def print_rows(rows: Sequence[dict[str, Any]], now: int, empty: str = "") -> None:
    """Print a table of sources and sinks, and what is wrong with them.

    Args:
        rows: Each in the form of -o json.
        now: The time of the rows, in microseconds.
        empty: What is printed if there are none.
    """
    columns = ("name", "kind", "connector", "parts", "records", "bad", "behind", "newest", "state")
    print_table(columns, [_cells(one, now) for one in rows], empty)
    for one in rows:
        if one["bad"] and 2 * one["bad"] > one["records"]:
            print(
                f"{one['name']}: {one['bad']:,} of the {one['records']:,} records cannot be read: its stream of bad= "
                "has them with their errors. See whether timestamp= and the type of the records are right"
            )
        if one["error"]:
            print(f"{one['name']}: {one['error']}")
        if one["unlisted"]:
            print(f"{one['name']}: its {_noun(one)}s cannot be listed now: {one['unlisted']}")


def _none(topology: str) -> str:
    """Return what is printed if there are no rows. A stream that ``topology.source`` declares may have injectors."""
    found = f"topology {topology} has no running connector" if topology else "no running topology has a connector"
    return f"{found}; what injectors feed is shown by `millwheel injector list`"


def first_part(topology: wire.TopologyOverview, one: wire.ComputationOverview) -> wire.ComputationOverview:
    """Return the computation that finds the splits of a source, or that makes the batches of a sink.

    Args:
        topology: The topology, with all of its computations.
        one: The computation that reads, or that writes.
    """
    streams = {edge.stream for edge in one.inputs}
    for other in topology.computations:
        if other.connector in _FIRST_PARTS and streams.intersection(other.outputs):
            return other
    return wire.ComputationOverview()


async def _states(client: ControlClient, topology: str, computation: str) -> list[keys.OwnedKey]:
    """Return all splits or shards of a computation, with their states."""
    found: list[keys.OwnedKey] = []
    request = keys.ListComputationKeysRequest(topology=topology, computation=computation, page_size=_PAGE, states=True)
    while True:
        page = await client.call(
            "/millwheel.v1.KeyService/ListComputationKeys", request, keys.ListComputationKeysResponse
        )
        found += page.keys
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


async def listed_row(
    client: ControlClient, topology: str, one: wire.ComputationOverview, first: wire.ComputationOverview
) -> dict[str, Any]:
    """Ask for the splits or shards of a source or a sink, and return its row.

    It is shown without them if they cannot be listed, for example while an interval of it is being opened.

    Args:
        client: A client of the master.
        topology: The topology's name.
        one: The computation that reads, or that writes.
        first: That which finds its splits, or makes its batches.
    """
    try:
        return connector_row(topology, one, first, await _states(client, topology, one.name))
    except RequestError as error:
        return connector_row(topology, one, first, None) | {"unlisted": str(error)}


def connector_row(
    topology: str,
    one: wire.ComputationOverview,
    first: wire.ComputationOverview,
    listed: Sequence[keys.OwnedKey] | None,
) -> dict[str, Any]:
    """Return a source or a sink in the form of -o json.

    Args:
        topology: The topology's name.
        one: The computation that reads, or that writes.
        first: That which finds its splits, or makes its batches.
        listed: Its splits or shards, with their states. None: they cannot be listed now.
    """
    reads = one.connector == wire.CONNECTOR_PART_READS
    states = [state for key in listed or () if (state := _state(key.listed.state_text)) is not None]
    times = [state["read_at" if reads else "at"] for state in states if state["records"]]
    waits = [state["behind"] for state in states if state.get("behind") is not None]
    failing = next((part.failures.text for part in (one, first) if part.failures.text), "")
    return {
        "name": f"{topology}/{one.name.removesuffix(_READER) if reads else one.name}",
        "kind": "source" if reads else "sink",
        "connector": name_of(one.implementation),
        "implementation": one.implementation,
        "parts": None if listed is None else len(listed),
        "ended": sum(state["ended"] for state in states) if reads and listed is not None else None,
        "complete": one.watermark.low_watermark_us == MAX_TIMESTAMP,
        "records": None if listed is None else sum(state["records"] for state in states),
        # A split that was last read by an earlier version has no such field.
        "bad": sum(state.get("bad", 0) for state in states) if reads and listed is not None else None,
        "behind_records": (sum(waits) if waits else None) if reads else one.queued_records + first.queued_records,
        "behind_seconds": None if reads else max(one.system_lag_seconds, first.system_lag_seconds),
        "newest": format_timestamp(Timestamp(max(times))) if times else None,
        "newest_us": max(times) if times else None,
        "failing": None if listed is None else sum(bool(key.listed.error) for key in listed),
        "error": failing or None,
        "unlisted": None,
    }


def _state(text: str) -> dict[str, Any] | None:
    """Return the state of a split or shard. None: there is none yet, or its position is too long or cannot be JSON."""
    try:
        return dict(json.loads(text)) if text else None
    except ValueError:
        return None


def _cells(one: dict[str, Any], now: int) -> tuple[object, ...]:
    parts = "not known" if one["parts"] is None else f"{one['parts']:,} {_noun(one)}{'' if one['parts'] == 1 else 's'}"
    if one["ended"]:
        parts += f", {one['ended']:,} ended"
    records = "not known" if one["records"] is None else f"{one['records']:,}"
    age = "" if one["newest_us"] is None else f"{format_duration(Duration(max(0, now - one['newest_us'])))} ago"
    is_over = one["complete"] or (one["ended"] and one["ended"] == one["parts"])
    state = "FAILING" if one["error"] else "ended" if is_over else "runs"
    bad = "" if one["bad"] is None else f"{one['bad']:,}"
    return one["name"], one["kind"], one["connector"], parts, records, bad, _behind(one), age, state


def _noun(one: dict[str, Any]) -> str:
    return "split" if one["kind"] == "source" else "shard"


def _behind(one: dict[str, Any]) -> str:
    if one["behind_records"] is None:
        return "not known"
    lag = one["behind_seconds"]
    return f"{one['behind_records']:,}" if not lag else f"{one['behind_records']:,}, {format_duration(seconds(lag))}"
