"""``millwheel key list``: the keys of a computation that have a state or a timer."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Place, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.client.listings import ComputationListings, KeyPage
from millwheel.client.owned_intervals import split_computation_name
from millwheel.model.interval_map import interval_from_proto
from millwheel.model.keys import KeyInterval, past
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS

__all__ = ["keys_within", "list_keys"]


def list_keys(
    place: Place,
    prefix: Annotated[str, typer.Option(help="Only keys that begin with this text.")] = "",
    first: Annotated[str, typer.Option("--from", metavar="KEY", help="Begin at this key. Default: at the first.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="List at most so many keys.")] = 100,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List keys of a computation that have a state or a timer, in the order of their UTF-8 bytes.

    With each key: the size of its encoded state, the number of its timers, and the worker that owns it. If there are
    more keys, stderr says where the next page begins. Keys that are set or deleted meanwhile may be missing.

    Example: millwheel key list zeitgeist/window-counter --prefix cat
    """
    topology, computation = split_computation_name(place)
    within = keys_within(prefix.encode(), first.encode())

    async def work(client: ControlClient) -> KeyPage:
        found = await client.get_topology(topology)
        listings = ComputationListings(found, computation, timeout)
        return await listings.keys(within, limit) if within is not None else KeyPage([], None, 0)

    page = ask(work, address, timeout)
    rows: list[dict[str, Any]] = [
        {
            "key": one.key.decode("utf-8", "backslashreplace"),
            "state_bytes": one.state_bytes,
            "timers": one.timers,
            "damaged": one.damaged,
            "interval": str(interval_from_proto(interval.keys)),
            "owner": interval.owner.worker_id,
        }
        for interval, one in page.keys
    ]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
    else:
        print_table(["key", "state bytes", "timers", "owner"], [_row(one) for one in rows], "no keys")
    if page.following is not None:
        following = shlex.quote(page.following.decode("utf-8", "backslashreplace"))
        print(f"there may be more keys: go on with --from {following}", file=sys.stderr)
    if page.spilled_timers:
        print(
            f"{page.spilled_timers:,} timers are in the store only: keys that have nothing else are not shown; "
            "`millwheel timer list` shows them",
            file=sys.stderr,
        )


def keys_within(prefix: bytes, first: bytes) -> KeyInterval | None:
    """The keys with a prefix from a key on. None: there are none."""
    end = past(prefix) if prefix else None
    start = max(prefix, first)
    return None if end is not None and start >= end else KeyInterval(start, end)


def _row(one: dict[str, Any]) -> list[object]:
    size = "damaged" if one["damaged"] else f"{one['state_bytes']:,}" if one["state_bytes"] else "none"
    return [one["key"], size, one["timers"] or "", one["owner"]]
