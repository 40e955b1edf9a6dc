"""``millwheel topology quota``: what a topology may take of the cluster."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from millwheel.cli.completing import complete_topologies
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain
from millwheel.cli.reaching import ask
from millwheel.cli.records import plain_quota
from millwheel.client.control import ControlClient
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["quota", "quota_text"]


def quota(
    name: Annotated[str, typer.Argument(help="The topology's name.", autocompletion=complete_topologies)],
    weight: Annotated[
        float | None,
        typer.Option(min=0.01, max=100.0, help="Its part of a worker's time beside the others'. 1 at first."),
    ] = None,
    records_per_second: Annotated[
        int | None, typer.Option(min=0, help="Injected records that the cluster takes in a second; 0: no limit.")
    ] = None,
    intervals: Annotated[
        int | None, typer.Option(min=0, help="Key intervals of all its computations together; 0: no limit.")
    ] = None,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Show what a topology may take of the cluster, or change it. What is not given stays as it is."""

    async def work(client: ControlClient) -> catalog.TopologyRecord:
        record = (await client.get_topology(name)).topology
        wanted = catalog.TopologyQuota()
        wanted.CopyFrom(record.quota)
        given = {"weight": weight, "records_per_second": records_per_second, "intervals": intervals}
        for field, value in given.items():
            if value is not None:
                setattr(wanted, field, value)
        return record if all(one is None for one in given.values()) else await client.set_quota(name, wanted)

    shown = plain_quota(ask(work, address, timeout))
    if output is OutputFormat.TABLE:
        print(f"topology {name}: {quota_text(shown)}")
    else:
        print_plain(shown, output)


def quota_text(shown: dict[str, Plain]) -> str:
    """A quota as one line of text."""
    weight, records, intervals = (cast("Any", one) for one in shown.values())
    rate = "any number of records/s" if records is None else f"{records:,} records/s"
    count = "any number of intervals" if intervals is None else f"{intervals:,} intervals"
    return f"weight {weight:g}, {rate}, {count}"
