"""``millwheel snapshot``: create, list, show, verify, states, delete, restore."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Final

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.completing import complete_topologies
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.cli.records import summarize_topology
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.model.wording import state_name
from millwheel.rpc.v1 import snapshot_pb2 as wire
from millwheel.snapshots.deleting import delete_snapshots
from millwheel.snapshots.location import SnapshotLocation
from millwheel.snapshots.manifest import all_files, read_manifest, written_bytes
from millwheel.snapshots.verifying import SnapshotContent, verify_snapshot

__all__ = ["app"]

app = typer.Typer(
    help="Snapshots of running topologies: state, timers, ids, logs, cursors and code, in a directory or object store.",
    no_args_is_help=True,
    add_completion=False,
    epilog="A location is a directory, or a URL such as s3://bucket/prefix, gs://bucket or az://container. For create"
    " and restore the leading master uses it, so each master must reach it. The others use it from here.",
)

_TIMEOUT_SECONDS: Final = 3_600.0

Location = Annotated[str, typer.Argument(help="The directory or URL with the snapshots.")]
Name = Annotated[str, typer.Argument(help="The snapshot's name, as `snapshot list` shows it.")]
LongTimeout = Annotated[
    float,
    typer.Option("--timeout", min=0.001, help="The most seconds that it may take.", rich_help_panel="Connection"),
]


@app.callback()
def _verbs() -> None:
    """Snapshots of running topologies: state, timers, ids, logs, cursors and code, in a directory or object store."""


@app.command()
def create(
    topology: Annotated[str, typer.Argument(help="The topology.", autocompletion=complete_topologies)],
    to: Annotated[str, typer.Option("--to", help="The directory or URL that gets the snapshot.")],
    name: Annotated[str, typer.Option("--name", help="The snapshot's name. Default: topology and time.")] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Write everything, also what earlier snapshots of the location have.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: LongTimeout = _TIMEOUT_SECONDS,
) -> None:
    """Take a consistent snapshot of a topology while it runs. Only what has changed since earlier ones is written.

    Example: millwheel snapshot create zeitgeist --to /backups
    """
    location = _absolute(to)
    answer = ask(lambda client: client.create_snapshot(topology, location, name, full), address, timeout)
    if output is not OutputFormat.TABLE:
        stall = answer.stall_us / 1e6
        print_plain({**_plain(answer.manifest), "stall_seconds": stall, "attempts": answer.attempts}, output)
        return
    print(
        f"snapshot {answer.manifest.name} of topology {topology}: {_size(answer.manifest)}, of which "
        f"{written_bytes(answer.manifest):,} bytes were written"
    )
    print(f"the topology committed nothing for {answer.stall_us / 1e3:.1f} ms at most")


@app.command("list")
def list_snapshots(location: Location, output: Output = OutputFormat.TABLE) -> None:
    """List the snapshots of a location."""

    async def read() -> list[wire.SnapshotManifest]:
        place = SnapshotLocation(location)
        return [await read_manifest(place.folder(name)) for name in await place.names()]

    found = asyncio.run(read())
    if output is not OutputFormat.TABLE:
        print_plain([_plain(one) for one in found], output)
        return
    rows = [
        (
            *(one.name, one.topology.spec.name, one.topology.version, _taken(one), _size(one)),
            f"{written_bytes(one):,} bytes",
        )
        for one in found
    ]
    print_table(["name", "topology", "version", "taken", "size", "written"], rows, "no snapshots")


@app.command()
def show(location: Location, name: Name, output: Output = OutputFormat.TABLE) -> None:
    """Show what a snapshot has: intervals with their commits, logs and files."""
    manifest = asyncio.run(read_manifest(SnapshotLocation(location).folder(name)))
    if output is not OutputFormat.TABLE:
        print_plain(_plain(manifest), output)
        return
    print(f"snapshot {manifest.name} of topology {manifest.topology.spec.name}, version {manifest.topology.version}")
    print(f"taken {_taken(manifest)} by MillWheel {manifest.millwheel_version}: {_size(manifest)}")
    rows = [(one.journal, one.commit, one.commit - one.truncation_point) for one in manifest.journals]
    print_table(["journal", "commit", "entries"], rows)


@app.command()
def verify(location: Location, name: Name, output: Output = OutputFormat.TABLE) -> None:
    """Read a snapshot back: compare all checksums, and decode each journal as a new owner would."""
    found = asyncio.run(verify_snapshot(SnapshotLocation(location).folder(name)))
    if output is not OutputFormat.TABLE:
        print_plain({"name": name, **_counts(found)}, output)
        return
    counts = ", ".join(f"{value:,} {what.replace('_', ' ')}" for what, value in _counts(found).items())
    print(f"snapshot {name} is complete and can be restored: {counts}")


@app.command()
def states(
    location: Location,
    name: Name,
    computation: Annotated[str, typer.Argument(help="The computation, as TOPOLOGY/COMPUTATION.")],
    to: Annotated[Path, typer.Option("--to", help="The Parquet file that gets them. It is replaced if it exists.")],
    output: Output = OutputFormat.TABLE,
) -> None:
    """Write the states of a computation in a snapshot to a Parquet file: a row for each key. It needs no cluster.

    The columns are key, state, timers and hold_us. It needs the extra `arrow`.

    Example: millwheel snapshot states /backups monday zeitgeist/model --to models.parquet
    """
    from millwheel.snapshots.tables import write_snapshot_state

    keys = write_snapshot_state(location, name, computation, to)
    if output is not OutputFormat.TABLE:
        print_plain({"name": name, "computation": computation, "file": str(to), "keys": keys}, output)
        return
    print(f"{to} has the states of {computation} in snapshot {name}: {keys:,} keys")


@app.command()
def delete(
    location: Location,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="The snapshots. None: only what no snapshot needs, such as the rest of one that failed."),
    ] = None,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="Delete also those of them whose manifests cannot be read.")
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Delete snapshots of a location. What other snapshots share with them stays.

    Example: millwheel snapshot delete /backups monday tuesday
    """
    if names and not yes:
        confirm(f"Delete {', '.join(names)} in {location} for good?")
    done = asyncio.run(delete_snapshots(SnapshotLocation(location), names or (), unreadable=unreadable))
    if output is not OutputFormat.TABLE:
        print_plain({"names": list(done.names), "chunks": done.chunks, "freed_bytes": done.freed_bytes}, output)
        return
    what = f"deleted {', '.join(done.names)}" if done.names else "deleted no snapshot"
    print(f"{what}: {done.freed_bytes:,} bytes in {done.chunks} files that no other snapshot needs")


@app.command()
def restore(
    location: Location,
    name: Name,
    paused: Annotated[bool, typer.Option("--paused", help="Leave the topology paused.")] = False,
    as_name: Annotated[
        str, typer.Option("--as", metavar="NAME", help="Give the topology this name: make a fork of the original.")
    ] = "",
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: LongTimeout = _TIMEOUT_SECONDS,
) -> None:
    """Make the topology of a snapshot, in any cluster where its name is free.

    Its injectors then begin again from their own checkpoints of the snapshot's time or before. What is sent again is
    recognised.

    With --as, the topology runs beside the original, and has streams of its own: NAME/STREAM. Feed them from the same
    sources, and update it with another version: millwheel topology update MODULE:ATTR --as NAME.

    Example: millwheel snapshot restore /backups monday --as zeitgeist-next
    """
    place = _absolute(location)
    record = ask(
        lambda client: client.restore_snapshot(place, name, paused, topology=as_name), address, timeout
    ).topology
    if output is not OutputFormat.TABLE:
        print_plain(summarize_topology(record), output)
        return
    state = state_name(record.state)
    fork = f" as a fork of {record.fork.topology}" if as_name and record.HasField("fork") else ""
    print(f"topology {record.spec.name} is restored from snapshot {name}{fork}, and {state} (version {record.version})")


def _absolute(location: str) -> str:
    """The location for a process with another working directory."""
    return location if "://" in location or not location else str(Path.cwd() / location)


def _taken(manifest: wire.SnapshotManifest) -> str:
    return format_timestamp(Timestamp(manifest.taken_at_us))


def _size(manifest: wire.SnapshotManifest) -> str:
    files = all_files(manifest)
    return f"{sum(file.size_bytes for file in files):,} bytes in {len(files)} files"


def _plain(manifest: wire.SnapshotManifest) -> dict[str, Plain]:
    files = all_files(manifest)
    return {
        "name": manifest.name,
        "topology": manifest.topology.spec.name,
        "version": manifest.topology.version,
        "taken": _taken(manifest),
        "taken_us": manifest.taken_at_us,
        "millwheel_version": manifest.millwheel_version,
        "size_bytes": sum(file.size_bytes for file in files),
        "written_bytes": written_bytes(manifest),
        "files": len(files),
        "journals": [
            {"journal": one.journal, "commit": one.commit, "entries": one.commit - one.truncation_point}
            for one in manifest.journals
        ],
        "logs": [log.stream for log in manifest.logs],
    }


def _counts(found: SnapshotContent) -> dict[str, int]:
    return {
        "files": found.files,
        "size_bytes": found.size_bytes,
        "base_parts": found.parts,
        "entries": found.entries,
        "state_rows": found.rows,
    }
