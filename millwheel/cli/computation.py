"""``millwheel computation``: list, and add or remove one while the rest of its topology runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, cast

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.loading import load
from millwheel.cli.options import DEFAULT_ADDRESS, Address, AnyTopology, Output, Place, SignKey, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.cli.records import summarize_topology
from millwheel.cli.waiting import wait_for_update
from millwheel.client.control import ControlClient
from millwheel.client.owned_intervals import split_computation_name
from millwheel.model.catalog import outputs_of
from millwheel.model.wording import state_name
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import did_you_mean

__all__ = ["added", "app", "removed"]

app = typer.Typer(
    help="Computations: list them, and add or remove one while the rest of its topology runs.",
    no_args_is_help=True,
    add_completion=False,
)

Include = Annotated[
    list[str] | None,
    typer.Option("--include", help="A further module or package to send along, by name or path. May be repeated."),
]
Wait = Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the change is done; 0 returns at once.")]


@app.callback()
def _verbs() -> None:
    """Computations: list them, and add or remove one while the rest of its topology runs."""


@app.command("list")
def list_computations(
    topology: AnyTopology = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List computations with what they read and write, and the load that their owners have reported.

    The column come/s has the records that come in a second, and records/s those that are taken. If more come than are
    taken, the queue grows. A question mark: it cannot be said yet.
    """

    async def work(client: ControlClient) -> list[dict[str, Plain]]:
        records = [(await client.get_topology(topology)).topology] if topology else await client.list_topologies()
        intervals = await client.list_intervals(topology, "")
        return [
            _listed(record, spec, [one for one in intervals if _is_of(one, record.spec.name, spec.name)])
            for record in records
            for spec in record.spec.computations
        ]

    rows = cast("list[dict[str, Any]]", ask(work, address, timeout))
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["computation", "reads", "writes", "intervals", "come/s", "records/s", "busy", "queued", "notes"]
    print_table(columns, [_row(one) for one in rows], "no computations")


def _is_of(status: wire.IntervalStatus, topology: str, computation: str) -> bool:
    return (status.topology, status.computation) == (topology, computation)


def _listed(
    record: catalog.TopologyRecord, spec: specs.ComputationSpec, intervals: Sequence[wire.IntervalStatus]
) -> dict[str, Plain]:
    loads = [one.load for one in intervals if one.HasField("load")]
    return {
        "topology": record.spec.name,
        "topology_state": state_name(record.state),
        "computation": spec.name,
        "reads": [edge.stream for edge in spec.inputs],
        "writes": list(spec.outputs),
        "intervals": len(intervals),
        "serving": sum(load.serving for load in loads),
        "records_per_second": round(sum(load.records_per_second for load in loads), 3),
        "arriving_per_second": _arriving(intervals),
        "busy": round(sum(load.busy for load in loads), 4),
        "queued_records": sum(load.queued_records for load in loads),
        "blocked_keys": sum(load.failures.blocked_keys for load in loads),
        "stopped": any(load.stopped for load in loads),
    }


def _arriving(intervals: Sequence[wire.IntervalStatus]) -> float | None:
    """How many records come in a second. None: of an interval that has a load report, it cannot be said yet."""
    loaded = [one for one in intervals if one.HasField("load")]
    if not all(one.HasField("arriving_per_second") for one in loaded):
        return None
    return round(sum(one.arriving_per_second for one in loaded), 3)


def _row(one: dict[str, Any]) -> list[object]:
    notes = [] if one["topology_state"] == "running" else [f"topology is {one['topology_state']}"]
    notes += [f"{one['blocked_keys']:,} keys blocked by failing hooks"] if one["blocked_keys"] else []
    notes += ["STOPPED by its failure policy"] if one["stopped"] else []
    waiting = one["intervals"] - one["serving"]
    notes += [f"{waiting:,} intervals are not served"] if waiting else []
    short = f"{one['topology']}/"
    return [
        f"{short}{one['computation']}",
        ", ".join(name.removeprefix(short) for name in one["reads"]),
        ", ".join(name.removeprefix(short) for name in one["writes"]),
        f"{one['intervals']:,}",
        "?" if one["arriving_per_second"] is None else f"{one['arriving_per_second']:,.0f}",
        f"{one['records_per_second']:,.0f}",
        f"{one['busy']:.1%}",
        f"{one['queued_records']:,}",
        "; ".join(notes),
    ]


@app.command()
def add(
    place: Place,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:ATTR", help="The topology that declares it: package.module:attr or file.py:attr."
        ),
    ],
    include: Include = None,
    wait: Wait = 0.0,
    sign_key: SignKey = None,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Add one computation to a running topology; the others keep the code that they have.

    The new computation receives records from now on. It starts without state.
    """
    topology, computation = split_computation_name(place)
    packaged = load(target, include or (), sign_key)
    packaged.topology.check()

    async def work(client: ControlClient) -> catalog.TopologyRecord:
        running = (await client.get_topology(topology)).topology
        # The code of a fork says its original's name.
        offered = packaged.named(topology) if running.HasField("fork") else packaged
        spec = added(running.spec, offered.spec(), computation)
        await client.upload_package(packaged.package.digest, packaged.package.data)
        return await client.update(spec, expected_version=running.version)

    _run(work, wait, output, address, timeout)


@app.command()
def remove(
    place: Place,
    yes: Yes = False,
    wait: Wait = 0.0,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Remove one computation. What it had produced is delivered; its state and its pending records are deleted."""
    topology, computation = split_computation_name(place)
    if not yes:
        confirm(f"Remove computation {place}, and delete its state for good?")

    async def work(client: ControlClient) -> catalog.TopologyRecord:
        running = (await client.get_topology(topology)).topology
        return await client.update(removed(running.spec, computation), expected_version=running.version)

    _run(work, wait, output, address, timeout)


def added(running: specs.TopologySpec, offered: specs.TopologySpec, name: str) -> specs.TopologySpec:
    """Return ``running`` plus the computation ``name`` of ``offered``, with its code and its streams."""
    found = next((one for one in offered.computations if one.name == name), None)
    if found is None:
        hint = did_you_mean(name, [one.name for one in offered.computations])
        raise RequestError(
            FailureCode.NOT_FOUND, f"the given topology {offered.name!r} has no computation {name!r}{hint}"
        )
    if any(one.name == name for one in running.computations):
        raise RequestError(
            FailureCode.ALREADY_EXISTS,
            f"topology {running.name!r} has a computation {name!r} already",
            "change it by `millwheel topology update`",
        )
    if offered.name != running.name:
        raise RequestError(
            FailureCode.INVALID_ARGUMENT,
            f"the given topology is {offered.name!r}, not {running.name!r}: its streams would belong to another one",
            f"declare the computation in a millwheel.Topology({running.name!r})",
        )
    spec = specs.TopologySpec()
    spec.CopyFrom(running)
    spec.computations.append(found)
    spec.computations[-1].code.CopyFrom(offered.code)
    known = {stream.name for stream in spec.streams}
    spec.streams.extend(one for one in offered.streams if one.name in _streams(found) and one.name not in known)
    return spec


def removed(running: specs.TopologySpec, name: str) -> specs.TopologySpec:
    """Return ``running`` without the computation ``name``, and without streams that only this computation names.

    Injected streams stay.
    """
    spec = specs.TopologySpec()
    spec.CopyFrom(running)
    gone = next((one for one in spec.computations if one.name == name), None)
    if gone is None:
        hint = did_you_mean(name, [one.name for one in running.computations])
        raise RequestError(FailureCode.NOT_FOUND, f"topology {running.name!r} has no computation {name!r}{hint}")
    alone = _streams(gone)
    spec.computations.remove(gone)
    alone = alone.difference(*map(_streams, spec.computations))
    kept = [stream for stream in spec.streams if stream.injected or stream.name not in alone]
    del spec.streams[:]
    spec.streams.extend(kept)
    return spec


def _streams(computation: specs.ComputationSpec) -> set[str]:
    return {edge.stream for edge in computation.inputs} | set(outputs_of(computation))


def _run(
    work: Callable[[ControlClient], Awaitable[catalog.TopologyRecord]],
    wait: float,
    output: OutputFormat,
    address: str,
    timeout: float,
) -> None:
    async def run() -> catalog.TopologyRecord:
        async with ControlClient(address, deadline=timeout) as client:
            record = await work(client)
            return await wait_for_update(client, record, wait) if wait else record

    record = asyncio.run(run())
    if output is OutputFormat.TABLE:
        print(f"topology {record.spec.name} is {state_name(record.state)} (version {record.version})")
    else:
        print_plain(summarize_topology(record), output)
