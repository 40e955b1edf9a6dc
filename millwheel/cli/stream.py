"""``millwheel stream``: list, tail, table, cursors list and cursors delete."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, print_plain, print_table, to_yaml
from millwheel.cli.reaching import ask
from millwheel.cli.stream_list import list_streams
from millwheel.client.control import ControlClient
from millwheel.client.subscription import Batch, From, StreamTable, Subscription
from millwheel.client.subscription.cursors import delete_cursor, list_cursors
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["app", "kept_note", "show_value"]

app = typer.Typer(
    help="Streams: list them; print their records, or the latest of each key; the cursors of their readers.",
    no_args_is_help=True,
    add_completion=False,
)
cursors = typer.Typer(help="Durable cursors: how far each reader of a stream has come.", no_args_is_help=True)
app.add_typer(cursors, name="cursors")

app.command("list")(list_streams)

Stream = Annotated[str, typer.Argument(help="The stream: TOPOLOGY/STREAM, or STREAM alone if it is unique.")]

_FLUSH_SECONDS: Final = 5.0
_TEXT_WIDTH: Final = 27
"""The length of a timestamp with microseconds, in characters."""


class Begin(StrEnum):
    """The values of the option --from."""

    OLDEST = "oldest"
    NOW = "now"


@app.command()
def tail(
    stream: Stream,
    cursor: Annotated[
        str,
        typer.Option(help="A durable cursor's name: what was printed under it is not printed again. Default: none."),
    ] = "",
    begin: Annotated[
        Begin | None,
        typer.Option("--from", help="Where to begin. Default: now; a new cursor begins at the oldest record kept."),
    ] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="Stop after so many records; 0 goes on until Ctrl-C.")
    ] = 0,
    until_end: Annotated[
        bool, typer.Option("--until-end", help="Stop when the stream has ended: when all its injectors have finished.")
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to look for the stream while the cluster cannot be reached.")
    ] = 60.0,
) -> None:
    """Print a stream's records as they come, until Ctrl-C. With -o json it prints one JSON object per line.

    Example: millwheel stream tail zeitgeist/windows --from oldest -n 10
    """
    start = None if begin is None else From[begin.name]
    subscription = Subscription(
        stream, cursor=cursor, start=start, address=address, until_end=until_end, patience=timeout
    )
    from_oldest = begin is Begin.OLDEST or (begin is None and bool(cursor))
    asyncio.run(_tail(subscription, count, output, from_oldest))


def kept_note(subscription: Subscription, from_oldest: bool) -> str:
    """Return a note about the records before the printed ones, or an empty text if no note is needed."""
    since = subscription.kept_since
    at = "now" if since is None else format_timestamp(Timestamp(since - since % 1_000_000))
    if subscription.made_log:
        return (
            f"stream {subscription.stream} had no log yet: its records are kept from now on ({at}), because a tail or "
            "a cursor asks for them; what was produced before is not shown"
        )
    return f"stream {subscription.stream} keeps its records since {at}" if from_oldest and since is not None else ""


async def _tail(subscription: Subscription, count: int, output: OutputFormat, from_oldest: bool) -> None:
    async with subscription:
        if note := kept_note(subscription, from_oldest):
            print(note, file=sys.stderr, flush=True)
        if output is OutputFormat.TABLE:
            print(f"{'OFFSET':>10}  {'TIMESTAMP':{_TEXT_WIDTH}}  VALUE", flush=True)
        try:
            await _print_all(subscription, count, output)
        except asyncio.CancelledError:
            # After an interrupt, the ACKs of printed records are flushed, so that they are not printed again.
            with suppress(TimeoutError, RequestError):
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await subscription.flush()
            raise
        await subscription.flush()


async def _print_all(subscription: Subscription, count: int, output: OutputFormat) -> None:
    left, missed = count, 0
    async for batch in subscription:
        if subscription.missed > missed:
            print(f"{subscription.missed - missed:,} records were gone before they could be shown", file=sys.stderr)
            missed = subscription.missed
        printed = _print_batch(batch, subscription.spec.format, output, left if count else len(batch))
        await subscription.ack(batch.first_offset + printed)
        left -= printed
        if count and left <= 0:
            return


def _print_batch(batch: Batch, form: specs.ValueFormat.ValueType, output: OutputFormat, limit: int) -> int:
    """Print up to ``limit`` records. Returns the number of printed records."""
    lines = []
    for (offset, timestamp, value), _ in zip(batch, range(limit), strict=False):
        at = format_timestamp(Timestamp(timestamp))
        shown = show_value(value, form)
        if output is OutputFormat.TABLE:
            lines.append(f"{offset:>10}  {at:{_TEXT_WIDTH}}  {msgspec.json.encode(shown).decode()}\n")
            continue
        record = {"offset": offset, "timestamp": at, "timestamp_us": timestamp, "value": shown}
        if output is OutputFormat.JSON:
            lines.append(msgspec.json.encode(record).decode() + "\n")
        else:
            lines.append(to_yaml([record]))
    sys.stdout.write("".join(lines))
    sys.stdout.flush()
    return len(lines)


def show_value(value: bytes, form: specs.ValueFormat.ValueType) -> Any:
    """Return a value that JSON can represent: decoded MessagePack, text, or other bytes as {"base64": …}."""
    if form in (specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED):
        try:
            return msgspec.json.decode(msgspec.json.encode(msgspec.msgpack.decode(value)))
        except (msgspec.MsgspecError, TypeError, ValueError):
            pass  # The value is not MessagePack, or it has keys that JSON cannot represent.
    if form in (specs.VALUE_FORMAT_RAW, specs.VALUE_FORMAT_MSGPACK, specs.VALUE_FORMAT_UNSPECIFIED):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return {"base64": msgspec.to_builtins(value)}


@app.command()
def table(
    stream: Stream,
    key: Annotated[str, typer.Option(help="The field that is the key, such as user.id.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with each change, until Ctrl-C.")] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds to look for the stream while the cluster cannot be reached.")
    ] = 60.0,
) -> None:
    """Print the latest record of each key, of those that the stream's log keeps.

    With --follow, each later record follows. With -o json there is then one JSON object per line.

    Example: millwheel stream table zeitgeist/windows --key text
    """
    asyncio.run(_table(stream, key, follow, output, address, timeout))


async def _table(stream: str, key: str, follow: bool, output: OutputFormat, address: str, timeout: float) -> None:
    fields = key.split(".")

    def key_of(value: bytes) -> str:
        found = show_value(value, opened.subscription.spec.format)
        for field in fields:
            if not isinstance(found, dict) or field not in found:
                fault = f"a record of stream {stream!r} has no field {key!r}: {msgspec.json.encode(found).decode()}"
                raise RequestError(FailureCode.INVALID_ARGUMENT, fault, "name a field that each record has")
            found = found[field]
        return found if isinstance(found, str) else msgspec.json.encode(found).decode()

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
