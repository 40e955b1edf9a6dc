"""``millwheel topology``: submit, update, rollback, validate, list, describe, graph, pause, resume, drain, cancel."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.column_use import plain_columns, print_column_use, print_columns
from millwheel.cli.completing import complete_topologies
from millwheel.cli.failing import ExitCode
from millwheel.cli.graph import to_dot, to_mermaid, to_text
from millwheel.cli.hooks import HOOK_COLUMNS, hook_cells, plain_computation, plain_hooks
from millwheel.cli.loading import load
from millwheel.cli.options import DEFAULT_ADDRESS, DEFAULT_PATIENCE_SECONDS, Address, Output, Patience, SignKey, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table
from millwheel.cli.reaching import ask, retrying_client
from millwheel.cli.records import describe_topology, plain_quota, summarize_topology
from millwheel.cli.replacing import Replacement, refuse_other_name, replacement_of
from millwheel.cli.topology_quota import quota, quota_text
from millwheel.cli.topology_rollback import rollback
from millwheel.cli.waiting import wait_for_update, wait_until_running
from millwheel.client.control import ControlClient
from millwheel.model.catalog import LIVE_STATES
from millwheel.model.stream_names import dead_letter_stream
from millwheel.model.time import Duration, format_duration
from millwheel.model.wording import named, state_name
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.clock import wall_now
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.hook_failures import heading
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import cluster_pb2, interval_pb2
from millwheel.rpc.v1 import control_pb2 as control
from millwheel.rpc.v1 import inspection_pb2 as inspection
from millwheel.rpc.v1 import topology_pb2 as specs
from millwheel.sdk.errors import Problem, TopologyError

__all__ = ["app"]

app = typer.Typer(help="Topologies: submit, look at, change and end them.", no_args_is_help=True, add_completion=False)

_POLL_SECONDS = 0.5

Target = Annotated[
    str, typer.Argument(metavar="MODULE:ATTR", help="The topology: package.module:attr or file.py:attr.")
]
Include = Annotated[
    list[str] | None,
    typer.Option("--include", help="A further module or package to send along, by name or path. May be repeated."),
]
Name = Annotated[str, typer.Argument(help="The topology's name.", autocompletion=complete_topologies)]
As = Annotated[
    str,
    typer.Option(
        "--as", metavar="NAME", help="The topology's name in the cluster, if the code says another: a fork's."
    ),
]


class GraphFormat(StrEnum):
    """The values of the option -o of ``graph``."""

    TEXT = "text"
    DOT = "dot"
    MERMAID = "mermaid"


@app.command()
def submit(
    target: Target,
    include: Include = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0.0, help="Seconds to wait until owners serve all intervals; 0 returns at once. Exit code 4: too long."
        ),
    ] = 0.0,
    request_id: Annotated[
        str,
        typer.Option(
            help="A name for this request: submitting again under it changes nothing. For scripts that try again."
        ),
    ] = "",
    sign_key: SignKey = None,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
    patience: Patience = DEFAULT_PATIENCE_SECONDS,
) -> None:
    """Package a topology's code, send both to a cluster, and run it.

    Example: millwheel topology submit zeitgeist.py:zeitgeist --wait 60
    """
    packaged = load(target, include or (), sign_key)
    spec = packaged.spec()

    async def work() -> catalog.TopologyRecord:
        async with retrying_client(address, timeout, patience) as client:
            await client.upload_package(packaged.package.digest, packaged.package.data)
            record = await client.submit(spec, request_id)
            if wait:
                await wait_until_running(client, spec.name, wait)
            return record

    _print_record(asyncio.run(work()), output)


@app.command()
def update(
    target: Target,
    include: Include = None,
    as_name: As = "",
    yes: Yes = False,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait until all owners run the new version; 0 returns at once.")
    ] = 0.0,
    expected_version: Annotated[
        int, typer.Option(min=0, help="Refuse the update unless the topology has this version now; 0: any version.")
    ] = 0,
    request_id: Annotated[
        str,
        typer.Option(
            help="A name for this request: updating again under it changes nothing. For scripts that try again."
        ),
    ] = "",
    sign_key: SignKey = None,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
    patience: Patience = DEFAULT_PATIENCE_SECONDS,
) -> None:
    """Replace a running topology by a new version, without stopping it.

    Computations that stay keep their state. One whose state has another type must say how to read old states
    (state_version and migrate). New computations get the records from now on. Removed ones deliver what they had
    produced; their state is deleted. A renamed one is removed, and added without state. The command names those that
    are added and removed. It asks before it deletes state, unless --yes is given.

    A fork has another name than its code says: --as gives that name.

    Example: millwheel topology update zeitgeist.py:zeitgeist --wait 60
    """
    loaded = load(target, include or (), sign_key)
    packaged = loaded.named(as_name)
    spec = packaged.spec()

    async def look() -> Replacement:
        async with retrying_client(address, timeout, patience) as client:
            running = (await client.get_topology(spec.name)).topology
            refuse_other_name(running, loaded.topology.name)
            return replacement_of(running, spec)

    async def work(expected: int) -> tuple[catalog.TopologyRecord, bool]:
        async with retrying_client(address, timeout, patience) as client:
            await client.upload_package(packaged.package.digest, packaged.package.data)
            record = await client.update(spec, request_id, expected)
            changed = record.version != replacement.version
            return await wait_for_update(client, record, wait) if wait else record, changed

    replacement = asyncio.run(look())
    if output is OutputFormat.TABLE:
        replacement.show()
    if replacement.deleted and not yes:
        replacement.ask()
        # The answer is about this version alone.
        expected_version = expected_version or replacement.version
    record, changed = asyncio.run(work(expected_version))
    if not changed:
        print(f"nothing changed: topology {spec.name} has this code and these declarations already", file=sys.stderr)
    if output is OutputFormat.TABLE:
        _print_record(record, output)
    else:
        changes = {"added": list(replacement.added), "removed": list(replacement.removed)}
        print_plain(summarize_topology(record) | changes, output)


app.command()(rollback)


@app.command()
def validate(
    target: Target,
    include: Include = None,
    as_name: As = "",
    remote: Annotated[
        bool, typer.Option("--remote", help="Check it against what runs in the cluster, too; else no server is needed.")
    ] = False,
    as_update: Annotated[
        bool,
        typer.Option("--update", help="Check it as an update of the topology of this name that runs in the cluster."),
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Check a topology, and list all its problems. Nothing is run. Exit code 5 if there are problems.

    With --update, it also names the computations that the update adds and removes. With -o json there is then one
    object, with the problems and these names.
    """
    loaded = load(target, include or ())
    packaged = loaded.named(as_name)
    problems = packaged.topology.validate()
    replacement = Replacement(packaged.topology.name)
    if not problems and (remote or as_update):
        problems, replacement = asyncio.run(
            _remote_check(packaged.spec(), loaded.topology.name, as_update, address, timeout)
        )
    if output is not OutputFormat.TABLE:
        listed = [{"where": one.where, "message": one.message} for one in problems]
        print_plain({"problems": listed, **replacement.names()} if as_update else listed, output)
        raise typer.Exit(ExitCode.INVALID if problems else ExitCode.OK)
    if problems:
        raise TopologyError(packaged.topology.name, problems)
    replacement.show()
    print(f"topology {packaged.topology.name} is valid")
    plan = packaged.topology.plan()
    from millwheel.cli.source_notes import source_notes  # late: it imports all connectors

    for note in source_notes(plan):
        print(f"note: {note}")
    print_columns(plan)


async def _remote_check(
    spec: specs.TopologySpec, code: str, update: bool, address: str, timeout: float
) -> tuple[list[Problem], Replacement]:
    """The problems among the running topologies. If there are none, what an update adds and removes.

    ``code``: the name that the code gives its topology.
    """
    async with ControlClient(address, deadline=timeout) as client:
        problems = await client.validate(spec, update=update)
        if problems or not update:
            return problems, Replacement(spec.name)
        running = (await client.get_topology(spec.name)).topology
        refuse_other_name(running, code)
        return problems, replacement_of(running, spec)


@app.command("list")
def list_topologies(
    show_all: Annotated[
        bool, typer.Option("--all", help="Also those that were cancelled within the last day.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List the topologies of a cluster. One that was cancelled is kept in the list for a day: --all shows it.

    With -o json or yaml, the list always has all of them, each with its state.
    """
    _print_records(ask(lambda client: client.list_topologies(), address, timeout), output, show_all)


@app.command()
def describe(
    name: Name,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Show a topology: its computations, their intervals and owners, its streams."""
    found, intervals, failing = asyncio.run(_looked_at(name, address, timeout))
    described = describe_topology(found)
    hooks: dict[str, list[inspection.HookTime]] = {}
    for hook in found.hooks:
        hooks.setdefault(hook.computation, []).append(hook.time)
    by_name = {fails.computation: fails for fails in failing}
    uses = {use.computation: use for use in found.columns}
    for one in cast("list[dict[str, Any]]", described["computations"]):
        one["hooks"] = plain_hooks(hooks.get(one["name"], []))
        one["columns"] = plain_columns(uses.get(one["name"]), hooks.get(one["name"], ()))
        fails = by_name.get(one["name"])
        one["failing"] = None if fails is None else plain_computation(fails)
        loads = [part.load for part in intervals if part.computation == one["name"]]
        one["dead_letters"] = sum(load.dead_letters for load in loads)
        one["late"], one["dropped"] = sum(load.late for load in loads), sum(load.dropped for load in loads)
    described["dead_letter_stream"] = dead_letter_stream(name)
    if output is not OutputFormat.TABLE:
        print_plain(described, output)
        return
    _print_described(
        cast("dict[str, Any]", described),
        hooks,
        [f"{heading(one.failures, one.stopped or one.absence, wall_now())}: {one.text}" for one in failing],
    )


@app.command()
def graph(
    topology: Annotated[
        str,
        typer.Argument(
            help="A topology's name in the cluster; or MODULE:ATTR, which needs no server.",
            autocompletion=complete_topologies,
        ),
    ],
    output: Annotated[GraphFormat, typer.Option("--output", "-o", help="How it is drawn.")] = GraphFormat.TEXT,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Draw a topology: as a tree of text, for Graphviz (dot) or for Mermaid."""
    is_code = ":" in topology
    spec = load(topology).spec() if is_code else asyncio.run(_get(topology, address, timeout)).topology.spec
    draw = {GraphFormat.TEXT: to_text, GraphFormat.DOT: to_dot, GraphFormat.MERMAID: to_mermaid}[output]
    print(draw(spec))


app.command()(quota)


@app.command()
def pause(
    name: Name,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Stop processing, for minutes: state, timers and pending records are kept until `resume`."""
    _print_record(ask(lambda client: client.pause(name), address, timeout), output)


@app.command()
def resume(
    name: Name,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Let a paused topology go on where it stopped."""
    _print_record(ask(lambda client: client.resume(name), address, timeout), output)


@app.command()
def drain(
    name: Name,
    yes: Yes = False,
    wait: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait until it has drained; 0 returns at once.")
    ] = 0.0,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Take no more injected records, and end when the pending ones are processed. The state is kept.

    A drained topology cannot go on. To go on later, pause it.
    """
    if not yes:
        asyncio.run(_get(name, address, timeout))
        confirm(f"Drain topology {name}? It takes no more records, and cannot go on afterwards.")

    _print_record(asyncio.run(_drain(name, wait, address, timeout)), output)


async def _drain(name: str, wait: float, address: str, timeout: float) -> catalog.TopologyRecord:
    end = time.monotonic() + wait
    async with ControlClient(address, deadline=timeout) as client:
        record = await client.drain(name)
        while wait and record.state == catalog.TOPOLOGY_STATE_DRAINING:
            found = await client.get_topology(name)
            record = found.topology
            if record.state == catalog.TOPOLOGY_STATE_DRAINING and time.monotonic() >= end:
                waiting = "; ".join(found.waiting_for)
                raise RequestError(
                    FailureCode.DEADLINE_EXCEEDED,
                    f"topology {name!r} still drains after {wait:g} s, waiting for {waiting}",
                    "wait longer, or give up what is pending by `millwheel topology cancel`",
                )
            await asyncio.sleep(_POLL_SECONDS if record.state == catalog.TOPOLOGY_STATE_DRAINING else 0)
    return record


@app.command()
def cancel(
    name: Name,
    yes: Yes = False,
    request_id: Annotated[
        str,
        typer.Option(
            help="A name for this request: again under it a newer topology is left alone. For scripts that try again."
        ),
    ] = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Stop a topology at once, and delete its state and its pending records."""
    if not yes:
        asyncio.run(_get(name, address, timeout))  # so that it asks about no topology that is not there
        confirm(f"Cancel topology {name}, and delete its state for good?")

    _print_record(ask(lambda client: client.cancel(name, request_id), address, timeout), output)


async def _get(name: str, address: str, timeout: float) -> control.GetTopologyResponse:
    async with ControlClient(address, deadline=timeout) as client:
        return await client.get_topology(name)


async def _looked_at(
    name: str, address: str, timeout: float
) -> tuple[control.GetTopologyResponse, list[interval_pb2.IntervalStatus], list[cluster_pb2.ComputationFailures]]:
    """Return a topology, the loads of its intervals, and the failures of its hooks."""
    async with ControlClient(address, deadline=timeout) as client:
        return await client.get_topology(name), await client.list_intervals(name), await client.hook_failures(name)


def _print_record(record: catalog.TopologyRecord, output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        print(f"topology {record.spec.name} is {state_name(record.state)} (version {record.version})")
    else:
        print_plain(summarize_topology(record), output)


def _print_records(records: Sequence[catalog.TopologyRecord], output: OutputFormat, show_all: bool) -> None:
    if output is not OutputFormat.TABLE:
        print_plain([summarize_topology(record) for record in records], output)
        return
    shown = [record for record in records if show_all or record.state in LIVE_STATES]
    rows = [summarize_topology(record) for record in shown]
    columns = ["name", "state", "version", "computations", "submitted_at"]
    empty = "no topologies; `millwheel topology submit MODULE:ATTR` runs one"
    print_table([one.replace("_", " ") for one in columns], [[row[one] for one in columns] for row in rows], empty)
    if cancelled := [record.spec.name for record in records if record not in shown]:
        print(f"cancelled within the last day, and listed by --all: {named(cancelled)}")


def _retention_text(retention: dict[str, int | None] | None) -> str:
    """Return how long a log keeps records, as text."""
    if retention is None:
        return "default"
    age, size = retention["age_us"], retention["bytes"]
    parts = ([] if age is None else [format_duration(Duration(age))]) + ([] if size is None else [f"{size:,} bytes"])
    return ", ".join(parts)


def _print_described(
    described: dict[str, Any], hooks: dict[str, list[inspection.HookTime]], failing: Sequence[str]
) -> None:
    print(f"topology {described['name']} is {described['state']} (version {described['version']})")
    print(f"submitted {described['submitted_at']}, code {described['entry_point']} {described['code_digest'][:12]}")
    if origin := described["fork"]:
        print(f"a fork of {origin['topology']}, from snapshot {origin['snapshot']}, taken {origin['taken']}")
    if described["quota"] != plain_quota(catalog.TopologyRecord()):
        print(f"quota: {quota_text(described['quota'])}")
    for waiting in described["waiting_for"]:
        print(f"waiting for {waiting}")
    for text in failing:
        print(text)
    rows = [
        (one["name"], interval["keys"], interval["owner"] or "none", interval["sequencer"], interval["journal"])
        for one in described["computations"]
        for interval in one["intervals"]
    ]
    print()
    print_table(["computation", "keys", "owner", "sequencer", "journal"], rows, "no intervals")
    times = [
        [one["name"], *hook_cells(time)] for one in described["computations"] for time in hooks.get(one["name"], ())
    ]
    if times:
        print()
        print_table(["computation", *HOOK_COLUMNS], times)
        print("calls since the present owners took over; a record that is taken by columns counts as one")
    print_column_use(described["computations"])
    logged = {log["stream"] for log in described["logs"]}
    streams = [
        (
            one["name"],
            one["type"],
            one["format"],
            "yes" if one["injected"] else "",
            "yes" if one["name"] in logged else "",
            _retention_text(one["retention"]) if one["name"] in logged else "",
        )
        for one in described["streams"]
    ]
    letters = described["dead_letter_stream"]
    streams.append((letters, "DeadLetter", "msgpack", "", "yes", _retention_text(None)))
    print()
    print_table(["stream", "type", "format", "injected", "log", "retention"], streams)
    counts = [f"{one['name']} {one['dead_letters']:,}" for one in described["computations"] if one["dead_letters"]]
    late = [
        f"{one['name']} {one['late']:,} late, of which {one['dropped']:,} had no effect"
        for one in described["computations"]
        if one["late"]
    ]
    if late:
        print()
        print(f"late records since the present owners took over: {'; '.join(late)}")
    if counts:
        print()
        print(f"dead letters: {', '.join(counts)}; `millwheel stream tail {letters} --from oldest` shows them")
