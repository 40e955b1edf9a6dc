"""``millwheel computation``: add and remove. Both update one computation while the rest of its topology runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.loading import load
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, print_plain
from millwheel.cli.records import summarize_topology
from millwheel.cli.waiting import wait_for_update
from millwheel.client.control import ControlClient
from millwheel.client.places import split_place
from millwheel.model.catalog import outputs_of
from millwheel.model.wording import state_name
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import did_you_mean

__all__ = ["added", "app", "removed"]

app = typer.Typer(
    help="Computations: add or remove one while the rest of its topology runs.",
    no_args_is_help=True,
    add_completion=False,
)

Place = Annotated[str, typer.Argument(metavar="TOPOLOGY/COMPUTATION", help="The computation.")]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", help="A further module or package to send along, by name or path. May be repeated."),
]
Wait = Annotated[float, typer.Option(min=0.0, help="Seconds to wait until the change is done; 0 returns at once.")]


@app.callback()
def _verbs() -> None:
    """Computations: add or remove one while the rest of its topology runs."""


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
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Add one computation to a running topology; the others keep the code that they have.

    The new computation receives records from now on. It starts without state.
    """
    topology, computation = split_place(place)
    packaged = load(target, include or ())
    offered = packaged.spec()

    async def work(client: ControlClient) -> catalog.TopologyRecord:
        running = (await client.get_topology(topology)).topology
        spec = added(running.spec, offered, computation)
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
    topology, computation = split_place(place)
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
