"""``millwheel cluster``: health."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, cast

import typer

from millwheel.cli.failing import ExitCode
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.model.wording import clock_time, counted
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import RequestError
from millwheel.rpc.v1 import cluster_pb2 as wire

__all__ = ["app", "plain_health", "plain_worker"]

app = typer.Typer(help="The health of the cluster as a whole.", no_args_is_help=True, add_completion=False)


@app.callback()
def _verbs() -> None:
    """The health of the cluster as a whole."""


@app.command()
def health(
    output: Output = OutputFormat.TABLE, address: Address = DEFAULT_ADDRESS, timeout: Timeout = DEFAULT_DEADLINE_SECONDS
) -> None:
    """Show masters, workers, authority, store and intervals, and their problems. Exit code 1 if there are problems.

    It also says which topologies have dead letters that wait. These are no problem of the cluster: exit code 0.
    """
    found, letters = ask(_health_and_letters, address, timeout)
    shown = cast("dict[str, Any]", plain_health(found, letters))
    if output is OutputFormat.TABLE:
        _print(shown)
    else:
        print_plain(shown, output)
    raise typer.Exit(ExitCode.FAILED if found.problems else ExitCode.OK)


async def _health_and_letters(client: ControlClient) -> tuple[wire.GetClusterHealthResponse, dict[str, int]]:
    """Return the health, and by topology how many dead letters wait, if there are any."""
    found = await client.cluster_health()
    try:
        overview = await client.call(
            "/millwheel.v1.ClusterService/GetOverview", wire.GetOverviewRequest(), wire.GetOverviewResponse
        )
    except RequestError:  # the health says more than the reason for this
        return found, {}
    return found, {one.name: one.unhandled_letters for one in overview.topologies if one.unhandled_letters}


def plain_worker(one: wire.WorkerHealth) -> dict[str, Plain]:
    """Describe one worker process."""
    return {
        "worker": one.worker_id,
        "address": one.address,
        "daemon": one.daemon or None,
        "package": one.package or None,
        "intervals": one.intervals,
        "answers": one.answers,
        "cpu": round(one.cpu, 3),
        "resident_bytes": one.resident_bytes,
        "memory_limit_bytes": one.memory_limit_bytes,
        "stalled": round(one.stalled, 3),
    }


def plain_health(found: wire.GetClusterHealthResponse, letters: Mapping[str, int]) -> dict[str, Plain]:
    """Describe the health of the cluster. ``letters``: by topology, how many dead letters wait."""
    return {
        "healthy": not found.problems,
        "problems": list(found.problems),
        "runbook": [_section(found, one.runbook) for one in found.problem_details],
        "masters": [{"address": one.address, "leads": one.leads} for one in found.masters],
        "workers": [plain_worker(one) for one in found.workers],
        "departed": [
            {
                "worker": one.worker_id,
                "address": one.address,
                "left_at": format_timestamp(Timestamp(one.left_at_us)),
                "left_at_us": one.left_at_us,
            }
            for one in found.departed
        ],
        "authorities": [
            {"shard": one.shard, "address": one.address or None, "answers": one.answers} for one in found.authorities
        ],
        "store": {
            "answers": found.store.answers,
            "read_seconds": round(found.store.read_seconds, 6),
            "error": found.store.error or None,
        },
        "intervals": {
            "all": found.intervals.all,
            "without_owner": found.intervals.without_owner,
            "with_parents": found.intervals.with_parents,
            "logs": found.intervals.logs,
        },
        "format": found.format or None,
        "dead_letters": [{"topology": name, "waiting": count} for name, count in sorted(letters.items())],
        "hot_keys": [
            {
                "topology": one.topology,
                "computation": one.computation,
                "key": one.key.decode("utf-8", "backslashreplace"),
                "share": round(one.share, 3),
                "busy": round(one.busy, 3),
            }
            for one in found.hot_keys
        ],
    }


def _section(found: wire.GetClusterHealthResponse, name: str) -> str:
    """Where a section of the runbook can be read: in the console of a master, that of the leading one if it has one."""
    consoles = [one.console for one in sorted(found.masters, key=lambda one: not one.leads) if one.console]
    page = f"{consoles[0].rstrip('/')}/runbook.html" if consoles else "docs/runbook.md"
    return f"{page}#{name.lower()}" if name else ""


def _print(found: dict[str, Any]) -> None:
    print("the cluster is healthy" if found["healthy"] else "the cluster needs attention:")
    # A leader of an earlier version names no sections.
    for problem, section in zip_longest(found["problems"], found["runbook"]):
        print(f"- {problem}")
        if section:
            print(f"  runbook: {section}")
    print()
    rows: list[list[object]] = [
        ["master", one["address"], "leads" if one["leads"] else "stands by", ""] for one in found["masters"]
    ]
    for one in found["workers"]:
        details = counted(one["intervals"], "interval")
        if one["answers"]:
            details += f", {one['cpu']:.0%} of a core, {one['resident_bytes'] / 1e6:,.0f} MB"
        rows.append([f"worker {one['worker']}", one["address"], _state(one["answers"]), details])
    for one in found["departed"]:
        rows.append(
            [f"worker {one['worker']}", one["address"], "stopped", f"in order at {clock_time(one['left_at_us'])}"]
        )
    for one in found["authorities"]:
        rows.append([f"authority shard {one['shard']}", one["address"] or "", _state(one["answers"]), ""])
    store = found["store"]
    took = f"a read took {store['read_seconds'] * 1e3:,.1f} ms"
    rows.append(["store", "", _state(store["answers"]), took if store["answers"] else store["error"] or ""])
    print_table(["what", "address", "state", "load"], rows)
    totals = found["intervals"]
    logs = f" ({totals['logs']:,} of logs)" if totals["logs"] else ""
    print()
    print(
        f"{totals['all']:,} intervals{logs}, {totals['without_owner']:,} without an owner, "
        f"{totals['with_parents']:,} starting from others"
    )
    if found["format"]:
        print(f"cluster format {found['format']}")
    for one in found["dead_letters"]:
        name, count = one["topology"], one["waiting"]
        wait = "waits" if count == 1 else "wait"
        print(f"{counted(count, 'dead letter')} of {name} {wait}: `millwheel dead-letter list {name}`")


def _state(answers: bool) -> str:
    return "answers" if answers else "does not answer"
