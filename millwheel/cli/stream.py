"""``millwheel stream``: list, tail, produce, table, cursors list, cursors delete and log delete."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Stream, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table, to_yaml
from millwheel.cli.reaching import ask
from millwheel.cli.stream_list import list_streams
from millwheel.cli.stream_log import app as log
from millwheel.cli.stream_produce import produce
from millwheel.cli.stream_records import as_text, field_of, kept_note
from millwheel.cli.stream_tail import tail
from millwheel.client.control import ControlClient
from millwheel.client.shown_values import show_value
from millwheel.client.subscription import StreamTable
from millwheel.client.subscription.cursors import delete_cursor, list_cursors
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["app"]

app = typer.Typer(
    help="Streams: list them; print their records, or the latest of each key; send one; the cursors of their readers.",
    no_args_is_help=True,
    add_completion=False,
)
cursors = typer.Typer(help="Durable cursors: how far each reader of a stream has come.", no_args_is_help=True)
app.add_typer(cursors, name="cursors")
app.add_typer(log, name="log")

app.command("list")(list_streams)
app.command()(tail)
app.command()(produce)


@app.command()
def table(
    stream: Stream,
    key: Annotated[
        list[str],
        typer.Option(help="The field that is the key, such as user.id; several times for a key of several fields."),
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with each change, until Ctrl-C.")] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to look for the stream while the cluster cannot be reached.")
    ] = 60.0,
) -> None:
    """Print the latest record of each key, of those that the stream's log keeps.

    With --follow, each later record follows. With -o json there is then one JSON object per line.

    A key of several fields is a list. The results of windows need one with their start, else only the last window of
    each key is shown.

    Example: millwheel stream table zeitgeist/windows --key text --key start
    """
    asyncio.run(_table(stream, key, follow, output, address, timeout))


async def _table(
    stream: str, fields: Sequence[str], follow: bool, output: OutputFormat, address: str, timeout: float
) -> None:
    def key_of(value: bytes) -> str:
        shown = show_value(value, opened.subscription.spec.format)
        found = [_field(stream, shown, field) for field in fields]
        return as_text(found if len(found) > 1 else found[0])

    def row(name: str, value: bytes) -> dict[str, Any]:
        return {"key": name, "value": show_value(value, opened.subscription.spec.format)}

    opened = StreamTable[str, bytes](stream, key_of, address=address, patience=timeout)
    async with opened:
        if note := kept_note(opened.subscription, True):
            print(note, file=sys.stderr, flush=True)
        rows = [row(*one) for one in sorted(opened.rows.items())]
        if follow:
            for one in rows:
                _print_row(one, output)
            async for change in opened:
                _print_row(row(*change), output)
        elif output is OutputFormat.TABLE:
            shown = [[one["key"], msgspec.json.encode(one["value"]).decode()] for one in rows]
            print_table(["key", "value"], shown, "the log of the stream has no records")
        else:
            print_plain(rows, output)


def _field(stream: str, shown: Any, path: str) -> Any:
    """The field of a record at a path."""
    try:
        return field_of(shown, path)
    except KeyError:
        fault = f"a record of stream {stream!r} has no field {path!r}: {msgspec.json.encode(shown).decode()}"
        raise RequestError(FailureCode.INVALID_ARGUMENT, fault, "name a field that each record has") from None


def _print_row(row: dict[str, Any], output: OutputFormat) -> None:
    if output is OutputFormat.TABLE:
        print(f"{row['key']:<30}  {msgspec.json.encode(row['value']).decode()}", flush=True)
    elif output is OutputFormat.JSON:
        print(msgspec.json.encode(row).decode(), flush=True)
    else:
        print(to_yaml([row]), end="", flush=True)


@cursors.command("list")
def list_(
    stream: Stream,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List a stream's durable cursors, and how many records each is behind."""

    async def work() -> list[dict[str, Any]]:
        async with ControlClient(address, deadline=timeout) as client:
            found = await list_cursors(stream, client)
        return [
            {"cursor": one.name, "acked": one.acked, "end": one.end, "behind": one.end - one.acked} for one in found
        ]

    rows = asyncio.run(work())
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    columns = ["cursor", "acked", "end", "behind"]
    print_table(columns, [[row[one] for one in columns] for row in rows], f"stream {stream} has no cursors")


@cursors.command("delete")
def delete(
    stream: Stream,
    cursor: Annotated[str, typer.Argument(help="The cursor's name.")],
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Delete a durable cursor. Records that were kept for it alone are deleted, too."""
    if not yes:
        confirm(f"Delete cursor {cursor} of stream {stream} for good?")

    ask(lambda client: delete_cursor(stream, cursor, client), address, timeout)
    print(f"cursor {cursor} of stream {stream} is deleted")
