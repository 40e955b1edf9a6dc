"""``millwheel stream list``: the streams of a cluster, with their writers and readers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, cast

import typer

from millwheel.cli.completing import complete_topologies
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.model.connector_parts import inner_streams
from millwheel.model.topology_index import LIVE_STATES
from millwheel.model.wording import state_name
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["list_streams"]


def list_streams(
    topology: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY", help="Default: the streams of all topologies.", autocompletion=complete_topologies
        ),
    ] = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also the streams within sources and sinks, such as sales.splits.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List streams: their types, where their records come from, who reads them, and whether a log keeps them."""

    async def work(client: ControlClient) -> list[dict[str, Plain]]:
        records = await client.list_topologies()
        if topology and topology not in [one.spec.name for one in records]:
            await client.get_topology(topology)  # says that there is none
        logs = {one.stream for one in await client.list_intervals("", "") if one.stream}
        found = _streams_of(records, logs)
        return [one for one in found if topology in ("", one["topology"]) and (everything or not one["inner"])]

    rows = cast("list[dict[str, Any]]", ask(work, address, timeout))
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["stream", "type", "from", "read by", "log", "notes"]
    print_table(columns, [_row(one) for one in rows], "no streams")


def _streams_of(records: Sequence[catalog.TopologyRecord], logs: Collection[str]) -> list[dict[str, Plain]]:
    """Describe the streams of topologies, each at the topology that it belongs to. ``logs``: those that have a log.

    A cancelled topology reads and writes nothing.
    """
    live = [one for one in records if one.state in LIVE_STATES]
    computations = [(one.spec.name, spec) for one in live for spec in one.spec.computations]
    return [
        {
            "topology": record.spec.name,
            "topology_state": state_name(record.state),
            "stream": stream.name,
            "type": stream.record_type,
            "injected": stream.injected,
            "written_by": [f"{name}/{spec.name}" for name, spec in computations if stream.name in spec.outputs],
            "read_by": [
                f"{name}/{spec.name}"
                for name, spec in computations
                if stream.name in [edge.stream for edge in spec.inputs]
            ],
            "log": stream.name in logs,
            "inner": stream.name in inner,
        }
        for record in records
        for inner in [inner_streams(record.spec)]
        for stream in record.spec.streams
        if not stream.external
    ]


def _row(one: dict[str, Any]) -> list[object]:
    own = f"{one['topology']}/"
    writers = [name.removeprefix(own) for name in one["written_by"]]
    return [
        one["stream"],
        one["type"],
        ", ".join([*(["injectors"] if one["injected"] else []), *writers]),
        ", ".join(name.removeprefix(own) for name in one["read_by"]),
        "kept" if one["log"] else "",
        "" if one["topology_state"] == "running" else f"topology is {one['topology_state']}",
    ]
