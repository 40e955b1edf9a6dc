"""``millwheel interval``: list, move, split, merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from millwheel.cli.completing import complete_intervals, complete_places
from millwheel.cli.hooks import plain_failures, plain_hooks
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.cli.records import plain_interval
from millwheel.client.control import ControlClient
from millwheel.client.holds.names import GroupNames
from millwheel.client.owned_intervals import split_computation_name
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.clock import wall_now
from millwheel.rpc.hook_failures import absence_text, blocks, computation_text, failed_lately, heading
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import interval_pb2 as wire
from millwheel.rpc.v1.cluster_pb2 import CONNECTOR_PART_UNSPECIFIED

__all__ = ["app", "plain_status", "status_row"]

app = typer.Typer(
    help="Intervals of keys: which worker has which, and moves, splits and merges while everything runs.",
    no_args_is_help=True,
    add_completion=False,
    epilog="An interval is named by its journal, as `millwheel interval list` shows it, or as TOPOLOGY/COMPUTATION with"
    " --key, any key in it. While one changes hands its records wait for some milliseconds; no state is copied.",
)

_EMPTY_KEY = (
    "names no interval (is a variable of a script empty?). Name the first interval by its journal, "
    "as `millwheel interval list` shows it"
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="INTERVAL",
        autocompletion=complete_intervals,
        help="The interval: its journal (see `interval list`), or TOPOLOGY/COMPUTATION and --key.",
    ),
]
Key = Annotated[str | None, typer.Option("--key", help="Any key in the interval, as text.")]
RequestId = Annotated[
    str,
    typer.Option(
        "--request-id", help="A name for this request: again under it changes nothing. For scripts that try again."
    ),
]


@app.callback()
def _verbs() -> None:
    """Intervals of keys: which worker has which, and moves, splits and merges while everything runs."""


@app.command("list")
def list_intervals(
    place: Annotated[
        str,
        typer.Argument(
            metavar="TOPOLOGY[/COMPUTATION]",
            autocompletion=complete_places,
            help="Default: all, and those of the streams' logs.",
        ),
    ] = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List intervals with their owners and the load that the owners last reported.

    The column busy has the share of the time in which an interval works, or its hooks wait for something outside. The
    intervals of a worker share its time: their shares add up to that of the worker.
    """
    topology, computation = split_computation_name(place) if "/" in place else (place, "")

    async def work(client: ControlClient) -> tuple[list[wire.IntervalStatus], GroupNames]:
        found = await client.list_intervals(topology, computation)
        # What helps if a hook does not end depends on whether it is one of a source or a sink.
        awaits = any(one.load.failures.awaited for one in found)
        return found, GroupNames.from_records(await client.list_topologies() if awaits else ())

    listed, names = ask(work, address, timeout)
    if output is not OutputFormat.TABLE:
        print_plain([plain_status(status) for status in listed], output)
        return
    columns = ["computation", "keys", "owner", "journal", "records/s", "busy", "queued", "cached", "notes"]
    print_table(columns, [status_row(plain_status(one), one.load, names) for one in listed], "no intervals")


@app.command()
def move(
    name: Name,
    key: Key = None,
    to: Annotated[
        str, typer.Option("--to", help="The worker to give it to. Default: the least loaded other one.")
    ] = "",
    request_id: RequestId = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Move an interval to another worker."""
    interval = _name(name, key)

    _print([ask(lambda client: client.move_interval(interval, to, request_id), address, timeout)], output)


@app.command()
def split(
    name: Name,
    key: Key = None,
    at: Annotated[
        str | None, typer.Option("--at", help="The first key of the upper half. Default: the key that halves the load.")
    ] = None,
    to: Annotated[str, typer.Option("--to", help="The worker for the upper half. Default: the present one.")] = "",
    request_id: RequestId = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Split an interval in two at a key.

    Example: millwheel interval split zeitgeist/window-counter --at m
    """
    if at == "":
        raise typer.BadParameter("an empty key divides nothing: no key is below it", param_hint="--at")
    interval = _name(name, at if key is None and "/" in name else key)

    middle = None if at is None else at.encode()
    _print(ask(lambda client: client.split_interval(interval, middle, to, request_id), address, timeout), output)


@app.command()
def merge(
    name: Name,
    key: Key = None,
    to: Annotated[
        str,
        typer.Option("--to", help="The worker for the merged interval. Default: the owner of the one that is named."),
    ] = "",
    request_id: RequestId = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Merge an interval with the next one."""
    interval = _name(name, key)

    _print([ask(lambda client: client.merge_intervals(interval, to, request_id), address, timeout)], output)


def _name(name: str, key: str | None) -> wire.IntervalName:
    """Parse the command line's name of an interval. A name without a slash is a journal's name."""
    if key == "":
        raise typer.BadParameter(f"an empty key {_EMPTY_KEY}", param_hint="--key")
    if "/" not in name:
        if key is not None:
            raise typer.BadParameter(f"{name!r} names an interval already: leave --key out", param_hint="--key")
        return wire.IntervalName(journal=name)
    topology, computation = split_computation_name(name)
    interval = wire.IntervalName(topology=topology, computation=computation)
    if key is not None:
        interval.key = key.encode()
    return interval


def _print(made: Sequence[catalog.IntervalRecord], output: OutputFormat) -> None:
    """Print the intervals that the operation made."""
    rows = [cast("dict[str, Any]", plain_interval(one)) for one in made]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["keys", "owner", "sequencer", "journal"]
    print_table(columns, [[one["keys"], one["owner"] or "none", one["sequencer"], one["journal"]] for one in rows])


def plain_status(status: wire.IntervalStatus) -> dict[str, Plain]:
    """Describe an interval with the load that its owner has reported."""
    load = status.load if status.HasField("load") else None
    return {
        "topology": status.topology or None,
        "computation": status.computation or None,
        "stream": status.stream or None,
        **plain_interval(status.interval),
        "load": None
        if load is None
        else {
            "records_per_second": round(load.records_per_second, 3),
            "busy": round(load.busy, 4),
            "serving": load.serving,
            "queued_records": load.queued_records,
            "pending_productions": load.pending_productions,
            "keys": load.keys,
            "cached_bytes": load.cached_bytes,
            "quarantined": load.quarantined,
            "damaged_rows": load.damaged_rows,
            "damage": load.damage or None,
            "stopped": load.stopped or None,
            "absence": load.absence or None,
            "dead_letters": load.dead_letters,
            "failures": plain_failures(load.failures),
            "hooks": plain_hooks(load.hooks),
        },
        "hot_keys": [
            {"key": one.key.decode("utf-8", "backslashreplace"), "share": round(one.share, 3)}
            for one in status.hot_keys
        ],
    }


def status_row(status: dict[str, Plain], owners: inspection.IntervalLoad, names: GroupNames) -> list[object]:
    """Return the row of a described interval.

    Args:
        status: The interval.
        owners: What its owner has reported.
        names: Which computations are parts of sources and sinks. It may be empty if no hook is awaited.
    """
    one = cast("dict[str, Any]", status)
    whose = f"log of {one['stream']}" if one["stream"] else f"{one['topology']}/{one['computation']}"
    load = one["load"]
    # An interval that moves or is new has no report for some seconds, nor has any under a new leader.
    figures = ["?" if one["owner"] else "", "", "", ""]
    if load is not None:
        figures = [
            f"{load['records_per_second']:,.0f}",
            f"{load['busy']:.1%}",
            f"{load['queued_records']:,}",
            f"{load['cached_bytes'] / 1e6:,.1f} MB",
        ]
    notes = [f"{hot['key']!r} has {hot['share']:.0%} of the load" for hot in one["hot_keys"]]
    if load is not None and load["quarantined"]:
        notes.append(f"QUARANTINED: {load['damage']}")
    elif load is not None and load["damaged_rows"]:
        notes.append(f"{load['damaged_rows']:,} damaged rows, such as {load['damage']}")
    now = wall_now()
    if owners.absence:
        notes.append(f"FAILING: {absence_text(whose, owners.absence)}")
    if blocks(owners.failures, owners.stopped) or failed_lately(owners.failures, now):
        word = heading(owners.failures, owners.stopped, now)
        part = names.parts.get(owners.incarnation, CONNECTOR_PART_UNSPECIFIED)
        notes.append(f"{word}: {computation_text(whose, owners.failures, owners.stopped, now, part=part)}")
    if one["parents"]:
        notes.append("starts from " + ", ".join(one["parents"]))
    return [whose, one["keys"], one["owner"] or "none", one["journal"], *figures, "; ".join(notes)]
