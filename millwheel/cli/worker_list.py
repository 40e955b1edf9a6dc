"""``millwheel worker list``: the worker processes of a cluster with their load."""

from __future__ import annotations

from typing import Any, cast

from millwheel.cli.cluster import plain_worker
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS

__all__ = ["list_workers"]


def list_workers(
    output: Output = OutputFormat.TABLE, address: Address = DEFAULT_ADDRESS, timeout: Timeout = DEFAULT_DEADLINE_SECONDS
) -> None:
    """List the worker processes of a cluster, with the load that each has reported."""
    rows = [
        cast("dict[str, Any]", plain_worker(one))
        for one in ask(lambda client: client.cluster_health(), address, timeout).workers
    ]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["worker", "address", "state", "intervals", "cpu", "memory", "kept from running"]
    print_table(columns, [_row(one) for one in rows], "no workers")


def _row(one: dict[str, Any]) -> list[object]:
    head = [one["worker"], one["address"], "answers" if one["answers"] else "does not answer", f"{one['intervals']:,}"]
    if not one["answers"]:
        return [*head, "", "", ""]
    memory = f"{one['resident_bytes'] / 1e6:,.0f} MB"
    return [*head, f"{one['cpu']:.0%} of a core", memory, f"{one['stalled']:.0%} of its time"]
