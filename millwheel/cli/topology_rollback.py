"""``millwheel topology rollback``: back to the version before the last update."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from millwheel.cli.asking import Yes
from millwheel.cli.completing import complete_topologies
from millwheel.cli.options import DEFAULT_ADDRESS, DEFAULT_PATIENCE_SECONDS, Address, Output, Patience, Timeout
from millwheel.cli.output import OutputFormat, print_plain
from millwheel.cli.reaching import retrying_client
from millwheel.cli.records import summarize_topology
from millwheel.cli.replacing import replacement_of
from millwheel.cli.waiting import wait_for_update
from millwheel.model.catalog import earlier_version
from millwheel.model.wording import state_name
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["rollback"]


def rollback(
    name: Annotated[str, typer.Argument(help="The topology's name.", autocompletion=complete_topologies)],
    yes: Yes = False,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait until all owners run the earlier code; 0 returns at once.")
    ] = 0.0,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
    patience: Patience = DEFAULT_PATIENCE_SECONDS,
) -> None:
    """Go back to the version that the last update replaced. The cluster has its code: no file is needed.

    It is an update like any other, and is refused where an update is, such as if the earlier code cannot read newer
    states. States, timers and pending records stay. Rolling back again returns to the version that was left.

    Example: millwheel topology rollback zeitgeist --wait 60
    """

    async def look() -> catalog.TopologyRecord:
        async with retrying_client(address, timeout, patience) as client:
            return (await client.get_topology(name)).topology

    async def work(spec: specs.TopologySpec, version: int) -> catalog.TopologyRecord:
        async with retrying_client(address, timeout, patience) as client:
            updated = await client.update(spec, expected_version=version)
            return await wait_for_update(client, updated, wait) if wait else updated

    left = asyncio.run(look())
    earlier = earlier_version(left)
    if earlier is None:
        raise RequestError(
            FailureCode.FAILED_PRECONDITION,
            f"topology {name!r} has no earlier version to go back to",
            "only the version before the last update is kept; `millwheel topology update` brings any other",
            reason="NO_EARLIER_VERSION",
        )
    replacement = replacement_of(left, earlier.spec)
    if output is OutputFormat.TABLE:
        replacement.show()
    if replacement.deleted and not yes:
        replacement.ask()
    record = asyncio.run(work(earlier.spec, left.version))
    if output is OutputFormat.TABLE:
        is_now = f"version {record.version}, the same as version {earlier.version}"
        print(f"topology {name} is {state_name(record.state)} ({is_now})")
    else:
        print_plain(summarize_topology(record), output)
