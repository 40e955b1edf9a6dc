"""``millwheel event``: what has happened in the cluster."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

import typer

from millwheel.cli.completing import complete_topologies
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.cli.times import ago_or_time
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.v1 import catalog_pb2 as catalog

__all__ = ["app", "plain_event", "row_texts"]

app = typer.Typer(help="Events: what has happened in the cluster.", no_args_is_help=True, add_completion=False)

_MAX_SHOWN: Final = 120
"""The most characters of one text in a row."""


@app.callback()
def _verbs() -> None:
    """Events: what has happened in the cluster."""


@app.command("list")
def list_events(
    topology: Annotated[
        str,
        typer.Argument(metavar="[TOPOLOGY]", help="Default: all events.", autocompletion=complete_topologies),
    ] = "",
    kind: Annotated[
        str, typer.Option(help="Only events whose kind begins so, such as interval, or topology.updated.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME|DURATION", help="Only events from then on: 2026-01-31T12:00:00Z, or 10m, 2h.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="The most events.")] = 100,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List what has happened, the newest first: who did it, when, and what was before and after.

    The cluster keeps the last 1,000 events. The table cuts long texts, and -o json has all of them.

    Example: millwheel event list --kind interval --since 1h
    """
    first = ago_or_time(since, "--since") if since else 0
    found = ask(lambda client: client.list_events(topology, kind, first, limit), address, timeout)
    rows = [cast("dict[str, Any]", plain_event(one)) for one in found]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["at", "kind", "by", "event", "before", "after"]
    print_table(columns, [[one["at"], one["kind"], one["actor"], *row_texts(one)] for one in rows], "no events")


def row_texts(one: dict[str, Any]) -> list[str]:
    """Return the text, before and after of a plain event, each cut to what fits a row."""
    owners = ", ".join(
        f"{of['intervals']:,} from {of['before'] or 'no worker'} to {of['after'] or 'no worker'}"
        for of in one.get("owners", ())
    )
    return [_cut(one["text"]), _cut(one["before"] or ""), _cut(one["after"] or owners)]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[: _MAX_SHOWN - 1]}…"


def plain_event(event: catalog.EventRecord) -> dict[str, Plain]:
    """Describe an event."""
    return {
        "number": event.number,
        "at": format_timestamp(Timestamp(event.at_us)),
        "at_us": event.at_us,
        "last_at": format_timestamp(Timestamp(event.last_at_us)) if event.last_at_us else None,
        "last_at_us": event.last_at_us or None,
        "kind": event.kind,
        "actor": event.actor,
        "topology": event.topology or None,
        "subject": event.subject or None,
        "text": event.text,
        "before": event.before or None,
        "after": event.after or None,
        "owners": [
            {"before": one.before or None, "after": one.after or None, "intervals": one.intervals}
            for one in event.owners
        ],
    }
