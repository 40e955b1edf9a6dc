"""``millwheel watermark``: show, explain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from millwheel.cli.completing import complete_topologies
from millwheel.cli.hooks import plain_computation
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Place, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.client.control import ControlClient
from millwheel.client.holds.cause import HoldCause
from millwheel.client.holds.chain import explain_chain
from millwheel.client.holds.names import GroupNames
from millwheel.client.holds.watermark import GroupWatermark, held_by, open_authority, read_watermark
from millwheel.client.owned_intervals import incarnation_of, split_computation_name
from millwheel.client.percentiles import PercentileWatermark, basis_points, read_percentile
from millwheel.model.catalog import LIVE_STATES
from millwheel.model.connector_parts import PART_NAMES, connector_parts
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp, format_duration, format_timestamp, seconds
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["app"]

app = typer.Typer(
    help="Low watermarks: up to which time data is complete, and what holds it back.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
def show(
    topology: Annotated[
        str, typer.Argument(help="A topology's name. Default: all topologies.", autocompletion=complete_topologies)
    ] = "",
    percentile: Annotated[
        float | None,
        typer.Option(
            help="Also show an estimate that leaves stragglers out: with 99, the time that 99 % of the work has passed."
        ),
    ] = None,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Show the low watermark of every source and computation, how far it is behind the clock, and what holds it."""
    if percentile is not None:
        try:
            basis_points(percentile)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--percentile") from error
    rows = asyncio.run(_show(topology, percentile, address, timeout))
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["topology", "kind", "name", "low_watermark", "lag", "held_by"]
    if percentile is not None:
        columns.insert(5, "percentile_watermark")
    shown = [{**row, "kind": row["connector"] or row["kind"], "lag": _shown_lag(row["lag_seconds"])} for row in rows]
    print_table(
        [column.replace("_", " ") for column in columns],
        [[row[column] for column in columns] for row in shown],
        "no topology runs",
    )


async def _show(topology: str, percentile: float | None, address: str, timeout: float) -> list[dict[str, Any]]:
    async with ControlClient(address, deadline=timeout) as client:
        known = await client.list_topologies()
        if topology:
            records = [(await client.get_topology(topology)).topology]
        else:
            records = [record for record in known if record.state in LIVE_STATES]
        names = GroupNames.from_records(known)
    async with await open_authority(client, timeout) as authority:
        members = [(record.spec.name, *member) for record in records for member in _members(record)]
        rows = [
            _row(topology_name, kind, part, name, await read_watermark(authority, group), names)
            for topology_name, kind, part, name, group in members
        ]
        if percentile is not None:
            # The reads run concurrently, so the timeouts of members that do not publish their pending work overlap.
            reads = (read_percentile(authority, known, group, percentile) for *_, group in members)
            for row, found in zip(rows, await asyncio.gather(*reads), strict=True):
                row |= _percentile(found, percentile)
        return rows


def _members(record: catalog.TopologyRecord) -> Iterable[tuple[str, str, str, str]]:
    """Yield the sources, then the computations, as (kind, part of a source or sink, name, group)."""
    parts = connector_parts(record.spec)
    for stream in record.spec.streams:
        if stream.injected:
            yield "source", "", stream.name, injector_group(stream.name)
    for computation in record.spec.computations:
        part = PART_NAMES[parts[computation.name]] if computation.name in parts else ""
        yield "computation", part, computation.name, record.incarnations[computation.name]


def _row(topology: str, kind: str, part: str, name: str, found: GroupWatermark, names: GroupNames) -> dict[str, Any]:
    return {
        "topology": topology,
        "kind": kind,
        "connector": part or None,
        "name": name,
        "low_watermark": format_timestamp(Timestamp(found.value)),
        "low_watermark_us": found.value,
        "lag_seconds": _lag(found.value),
        "held_by": held_by(found, names),
    }


def _percentile(found: PercentileWatermark, percentile: float) -> dict[str, Any]:
    return {
        "percentile": percentile,
        "percentile_watermark": format_timestamp(Timestamp(found.value)),
        "percentile_watermark_us": found.value,
        "percentile_silent": found.silent,
    }


def _lag(watermark: int) -> float | None:
    """Return wall time minus the low watermark, in seconds, or None for the infinities."""
    if not MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
        return None
    return round(time.time() - watermark / 1e6, 3)


def _shown_lag(lag: float | None) -> str:
    return "" if lag is None else format_duration(seconds(lag))


@app.command()
def explain(
    place: Place,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Say what holds a low watermark back: the interval, record, timer or injector process at the root of it."""
    topology, computation = split_computation_name(place)
    found, cause = asyncio.run(_explain(topology, computation, address, timeout))
    if output is not OutputFormat.TABLE:
        print_plain(_plain(topology, computation, found, cause), output)
        return
    lag = _lag(found.value)
    behind = "" if lag is None else f", {_shown_lag(abs(lag))} {'behind' if lag >= 0 else 'ahead of'} the clock"
    print(f"low watermark of {topology}/{computation}: {format_timestamp(Timestamp(found.value))}{behind}")
    for link in cause.chain:
        print(f"  {link.text}  ({format_timestamp(Timestamp(link.value))})")
    print(f"  held by {cause.text}" if cause.kind != "none" else f"  {cause.text}")
    noted = "\n".join(cause.notes)
    further = [one.text for one in cause.failing if f"computation {one.topology}/{one.computation}" not in noted]
    for note in (*cause.notes, *further):
        print(f"  {note}")
    if cause.remedy:
        print(f"  {cause.remedy}")


async def _explain(topology: str, computation: str, address: str, timeout: float) -> tuple[GroupWatermark, HoldCause]:
    async with ControlClient(address, deadline=timeout) as client:
        group = incarnation_of((await client.get_topology(topology)).topology, computation)
        names = GroupNames.from_records(await client.list_topologies())
        async with await open_authority(client, timeout) as authority:
            return await explain_chain(group, client, authority, names)


def _plain(topology: str, computation: str, found: GroupWatermark, cause: HoldCause) -> dict[str, Any]:
    return {
        "topology": topology,
        "computation": computation,
        "low_watermark": format_timestamp(Timestamp(found.value)),
        "low_watermark_us": found.value,
        "lag_seconds": _lag(found.value),
        "chain": [
            {"name": link.name, "low_watermark": format_timestamp(Timestamp(link.value)), "text": link.text}
            for link in cause.chain
        ],
        "cause": {
            "kind": cause.kind,
            "name": cause.name,
            "interval": cause.interval or None,
            "process": cause.process or None,
            "subject": cause.subject or None,
            "text": cause.text,
            "notes": cause.notes,
            "remedy": cause.remedy or None,
        },
        "failing": [plain_computation(one) for one in cause.failing],
    }
