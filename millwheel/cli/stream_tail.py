"""``millwheel stream tail``: the records of a stream as they come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Stream
from millwheel.cli.output import OutputFormat, to_yaml
from millwheel.cli.stream_records import as_text, field_of, kept_note
from millwheel.cli.times import ago_or_time
from millwheel.client.shown_values import show_value
from millwheel.client.subscription import Batch, From, Subscription
from millwheel.model.time import Timestamp, format_timestamp
from millwheel.rpc.failures import RequestError

__all__ = ["tail"]

_FLUSH_SECONDS: Final = 5.0
_TEXT_WIDTH: Final = 27
"""The length of a timestamp with microseconds, in characters."""


class Begin(StrEnum):
    """The values of the option --from."""

    OLDEST = "oldest"
    NOW = "now"


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
    since: Annotated[
        str,
        typer.Option(
            metavar="TIME|DURATION",
            help="Begin at the first kept record that has this timestamp or a later one: 2026-01-31T12:00:00Z, or"
            " 10m, 2h for so long ago. All records after it follow, older ones too. Without such a record: begin now.",
        ),
    ] = "",
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=VALUE",
            help="Print only records with this value of a field, such as user.id=7; =VALUE is the record as a whole."
            " Several times: records that have all of them.",
        ),
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-n", min=0, help="Stop after so many records, or when the stream has ended. 0: no limit."
        ),
    ] = 0,
    until_end: Annotated[
        bool,
        typer.Option(
            "--until-end",
            help="Stop when the stream has ended, and all of it is printed. Without this and -n it waits on.",
        ),
    ] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001,
            help="Seconds to look for the stream while the cluster cannot be reached. It does not limit the wait for "
            "records.",
        ),
    ] = 60.0,
) -> None:
    """Print a stream's records as they come, until Ctrl-C. With -o json it prints one JSON object per line.

    A stream has ended when all its injectors have finished, and its sources have read all.

    Example: millwheel stream tail zeitgeist/windows --from oldest -n 10
    """
    if since and (cursor or begin is not None):
        raise typer.BadParameter("it is a place to begin: leave out --from and --cursor", param_hint="--since")
    first = ago_or_time(since, "--since") if since else None
    start = From.OLDEST if since else None if begin is None else From[begin.name]
    ends = until_end or count > 0  # a stream that has ended never has the rest of the count
    subscription = Subscription(stream, cursor=cursor, start=start, address=address, until_end=ends, patience=timeout)
    from_oldest = start is From.OLDEST or (begin is None and bool(cursor))
    asyncio.run(_Tail(subscription, KeyFilter(key or ()), count, output).run(first, from_oldest))


class KeyFilter:
    """The records that the options --key choose. A record has no key of its own: each consumer extracts one."""

    def __init__(self, options: Sequence[str]) -> None:
        """``options``: each is FIELD=VALUE. typer.BadParameter: one has another form."""
        self._wanted: list[tuple[str, str]] = []
        self.without: str = ""
        """The first field that a record did not have. Empty: all had all."""
        for option in options:
            field, equals, value = option.partition("=")
            if not equals:
                raise typer.BadParameter(
                    f"{option!r} names no field: write FIELD=VALUE, or ={option} for the record as a whole",
                    param_hint="--key",
                )
            self._wanted.append((field, value))

    def takes(self, shown: Any) -> bool:
        """Whether a shown value has the wanted values. A text is compared as it is, all else as JSON."""
        try:
            return all(as_text(field_of(shown, field) if field else shown) == value for field, value in self._wanted)
        except KeyError as missing:
            self.without = self.without or str(missing.args[0])
            return False


class _Tail:
    """One run of the command."""

    def __init__(self, subscription: Subscription, wanted: KeyFilter, count: int, output: OutputFormat) -> None:
        self._subscription = subscription
        self._wanted = wanted
        self._count = count
        self._output = output

    async def run(self, since: int | None, from_oldest: bool) -> None:
        async with self._subscription as subscription:
            if note := kept_note(subscription, from_oldest):
                _say(note)
            if self._output is OutputFormat.TABLE:
                print(f"{'OFFSET':>10}  {'TIMESTAMP':{_TEXT_WIDTH}}  VALUE", flush=True)
            try:
                await self._print_all(self._batches(since))
            except asyncio.CancelledError:
                # After an interrupt, the ACKs of printed records are flushed, so that they are not printed again.
                with suppress(TimeoutError, RequestError):
                    async with asyncio.timeout(_FLUSH_SECONDS):
                        await subscription.flush()
                raise
            await subscription.flush()

    async def _batches(self, since: int | None) -> AsyncIterator[Batch]:
        if since is not None:
            first = await self._first_since(since)
            if first is not None:
                yield first
            else:
                _say(f"no kept record is from {format_timestamp(Timestamp(since))} or later: those to come follow")
        async for batch in self._subscription:
            yield batch

    async def _first_since(self, since: int) -> Batch | None:
        """The records from the first one with this timestamp on, as far as the log had come when it was opened."""
        async for batch in self._subscription.below(self._subscription.end):
            for number, timestamp in enumerate(batch.timestamps):
                if timestamp >= since:
                    values, timestamps = batch.values[number:], batch.timestamps[number:]
                    return replace(
                        batch, first_offset=batch.first_offset + number, values=values, timestamps=timestamps
                    )
        return None

    async def _print_all(self, batches: AsyncIterator[Batch]) -> None:
        left, missed, without = self._count, 0, ""
        async for batch in batches:
            if self._subscription.missed > missed:
                _say(f"{self._subscription.missed - missed:,} records were gone before they could be shown")
                missed = self._subscription.missed
            taken, printed = self._print_batch(batch, left if self._count else len(batch))
            if self._wanted.without != without:
                without = self._wanted.without
                _say(f"records without a field {without!r} are not shown")
            await self._subscription.ack(batch.first_offset + taken)
            left -= printed
            if self._count and left <= 0:
                return

    def _print_batch(self, batch: Batch, limit: int) -> tuple[int, int]:
        """Print up to ``limit`` wanted records. Returns how many were looked at, and how many printed."""
        lines: list[str] = []
        taken = 0
        for offset, timestamp, value in batch:
            if len(lines) >= limit:
                break
            taken += 1
            shown = show_value(value, self._subscription.spec.format)
            if self._wanted.takes(shown):
                lines.append(_line(offset, timestamp, shown, self._output))
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        return taken, len(lines)


def _line(offset: int, timestamp: int, shown: Any, output: OutputFormat) -> str:
    at = format_timestamp(Timestamp(timestamp))
    if output is OutputFormat.TABLE:
        return f"{offset:>10}  {at:{_TEXT_WIDTH}}  {msgspec.json.encode(shown).decode()}\n"
    record = {"offset": offset, "timestamp": at, "timestamp_us": timestamp, "value": shown}
    return msgspec.json.encode(record).decode() + "\n" if output is OutputFormat.JSON else to_yaml([record])


def _say(note: str) -> None:
    print(note, file=sys.stderr, flush=True)
