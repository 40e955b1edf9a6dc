"""``millwheel injector``: list, advance, finish, retire, queries, retire-query."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.completing import complete_streams
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Output, Timeout
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.reaching import ask
from millwheel.cli.times import time_or_now
from millwheel.client.control import ControlClient
from millwheel.client.holds.watermark import open_authority, read_watermark
from millwheel.client.injector import Injector
from millwheel.model.incarnation import injector_group
from millwheel.model.time import MAX_TIMESTAMP, Duration, Timestamp, format_duration, format_timestamp
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError
from millwheel.rpc.v1 import catalog_pb2 as catalog
from millwheel.rpc.v1 import injection_pb2 as injection
from millwheel.sdk.errors import did_you_mean

__all__ = ["app", "last_report"]

_NO_PROCESS: Final = "none"
"""The process that a stream gets which ends without any: a low watermark is the minimum over processes."""

app = typer.Typer(
    help="Injectors: the processes that send records into streams.", no_args_is_help=True, add_completion=False
)


@app.command("list")
def list_injectors(
    stream: Annotated[
        str,
        typer.Argument(help="TOPOLOGY/STREAM, or STREAM alone. Default: all streams.", autocompletion=complete_streams),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that were retired.")] = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """List injector processes with their low watermarks.

    The cluster keeps no totals of their records. The metrics of a process have what it has sent, and what has no ACK
    yet: millwheel_injector_sent_records_total and millwheel_injector_unacked_records.
    """

    async def work() -> tuple[list[injection.InjectorStatus], list[catalog.TopologyRecord]]:
        async with ControlClient(address, deadline=timeout) as client:
            return await client.list_injectors(stream), await client.list_topologies()

    known, topologies = asyncio.run(work())
    found = [status for status in known if everything or not status.retired]
    if output is not OutputFormat.TABLE:
        print_plain([_plain(status) for status in found], output)
        return
    rows = [
        (
            one.stream,
            one.process,
            one.sequencer,
            _state(one),
            format_timestamp(Timestamp(one.watermark_us)),
            last_report(one),
        )
        for one in found
    ]
    print_table(("stream", "process", "sequencer", "state", "watermark", "last report"), rows, empty="no injectors")
    for name, paused in sorted(_waiting(found, topologies).items()):
        print(f"{name}: not ACKed while {', '.join(paused)} is paused; `millwheel topology resume` lets it go on")


def _waiting(found: list[injection.InjectorStatus], topologies: list[catalog.TopologyRecord]) -> dict[str, list[str]]:
    """Return by stream the paused topologies that delay its records. Only streams with unfinished processes count."""
    active = {status.stream for status in found if not status.finished}
    waiting: dict[str, list[str]] = {}
    for record in topologies:
        if record.state == catalog.TOPOLOGY_STATE_PAUSED:
            for name in {edge.stream for one in record.spec.computations for edge in one.inputs} & active:
                waiting.setdefault(name, []).append(record.spec.name)
    return waiting


def _state(status: injection.InjectorStatus) -> str:
    if status.retired:
        return "retired"
    if status.finished:
        return "finished"
    return "idle" if status.idle else "active"


def _plain(status: injection.InjectorStatus) -> dict[str, Plain]:
    return {
        "stream": status.stream,
        "process": status.process,
        "sequencer": status.sequencer,
        "state": _state(status),
        "watermark": format_timestamp(Timestamp(status.watermark_us)),
        "watermark_us": status.watermark_us,
        "silence_us": status.silence_us if status.HasField("silence_us") else None,
    }


def last_report(status: injection.InjectorStatus) -> str:
    """Return how long ago a process reported. Empty: it need not report any more, or it is not known."""
    if status.finished or status.retired or not status.HasField("silence_us"):
        return ""
    return f"{format_duration(Duration(status.silence_us))} ago"


@app.command()
def advance(
    stream: Annotated[str, typer.Argument(help="The stream that it feeds.", autocompletion=complete_streams)],
    process: Annotated[str, typer.Argument(help="The process's name.")],
    to: Annotated[
        str,
        typer.Option(metavar="TIME|now", help="The time: ISO 8601 with an offset, as 2026-01-31T12:00:00Z; or now."),
    ],
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Raise the low watermark of a quiet stream: promise that a process sends nothing older than a time.

    The process is idle afterwards, and may go on later under the same name. The stream does not end. Records that are
    older than the promise are late from now on. A running process of this name ends, because this command takes its
    place. For a stream that no process has fed yet, name the process that will feed it.
    """
    promise = time_or_now(to, "--to")
    asyncio.run(_unfinished_others(stream, process, address, may_be_first=True))
    if not yes:
        confirm(
            f"Promise for injector process {process} of stream {stream} that its records are no older than "
            f"{format_timestamp(promise)}? If such a process runs, it ends."
        )

    async def work() -> Timestamp:
        async with Injector(stream, address=address, process=process) as injector:
            await injector.advance(promise)
            await injector.idle()
            await injector.settle()
            return injector.watermark

    published = asyncio.run(work())
    if output is not OutputFormat.TABLE:
        plain: dict[str, Plain] = {"watermark": format_timestamp(published), "watermark_us": published}
        print_plain({"stream": stream, "process": process, "state": "idle", **plain}, output)
        return
    print(f"injector process {process} of stream {stream} has promised {format_timestamp(published)}, and is idle")


@app.command()
def finish(
    stream: Annotated[str, typer.Argument(help="The stream that it feeds.", autocompletion=complete_streams)],
    process: Annotated[str, typer.Argument(help="The process's name. Or give --all.")] = "",
    everything: Annotated[
        bool,
        typer.Option("--all", help="The stream itself: each process of it, also if it never had one."),
    ] = False,
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Declare that an injector process sends nothing more, for good: no low watermark waits for it any longer.

    With --all, the whole stream ends: no process can send into it later, and no low watermark waits for it.
    """
    if bool(process) == everything:
        raise typer.BadParameter("give the name of one process, or --all", param_hint="PROCESS")
    if everything:
        _finish_stream(stream, yes, output, address)
        return
    others = asyncio.run(_unfinished_others(stream, process, address))
    if not yes:
        last = "" if others else "It is the last process of the stream, so the stream takes no more records. "
        confirm(f"{last}End injector process {process} of stream {stream}, for good?")

    asyncio.run(_finish(stream, process, address))
    if output is not OutputFormat.TABLE:
        print_plain({"stream": stream, "process": process, "state": "finished"}, output)
        return
    print(f"injector process {process} of stream {stream} has finished")


def _finish_stream(stream: str, yes: bool, output: OutputFormat, address: str) -> None:
    """End each process of a stream. One that has none gets a process that finishes at once."""
    unfinished = asyncio.run(_unfinished(stream, address))
    if not yes:
        running = ", ".join(sorted(unfinished))
        whom = f"This ends the injector processes {running}. " if running else ""
        confirm(f"{whom}End stream {stream}, for good? No process can send into it later.")

    async def work() -> None:
        for name in sorted(await _unfinished(stream, address)):
            await _finish_if_open(stream, name, address)
        if not await _has_ended(stream, address) and not await _unfinished(stream, address):
            await _finish_if_open(stream, _NO_PROCESS, address)
        if not await _has_ended(stream, address):
            left = ", ".join(sorted(await _unfinished(stream, address)))
            raise RequestError(
                FailureCode.UNAVAILABLE,
                f"stream {stream!r} has not ended{f': it waits for injector process {left}' if left else ''}",
                "stop what starts such processes, and run the command again",
            )

    asyncio.run(work())
    if output is not OutputFormat.TABLE:
        print_plain({"stream": stream, "process": None, "state": "finished"}, output)
        return
    print(f"stream {stream} has finished: it takes no more records")


async def _finish(stream: str, process: str, address: str) -> None:
    async with Injector(stream, address=address, process=process) as injector:
        await injector.finish()


async def _finish_if_open(stream: str, process: str, address: str) -> None:
    """Finish a process, unless it has finished meanwhile."""
    try:
        await _finish(stream, process, address)
    except RequestError as error:
        if error.reason != "INJECTOR_FINISHED":
            raise


async def _has_ended(stream: str, address: str) -> bool:
    """Return whether the stream's low watermark is plus infinity: the master then opens no process of it (G7).

    The catalog does not say so. The authority may have forgotten a finished process, after an update of the expected
    ones; and the low watermark is unknown without any.
    """
    async with ControlClient(address) as client:
        group = injector_group((await client.routing(stream)).stream.name)
        async with await open_authority(client, DEFAULT_DEADLINE_SECONDS) as authority:
            return (await read_watermark(authority, group)).value == MAX_TIMESTAMP


async def _unfinished(stream: str, address: str) -> set[str]:
    """Return the processes that must finish before the stream ends: expected ones, or those that announced themselves.

    It may be empty for a stream that has not ended, such as one that never had any process.
    """
    announced, expected = await _processes(stream, address)
    members = expected or {one.process for one in announced}
    return members - {one.process for one in announced if one.finished or one.retired}


async def _processes(stream: str, address: str) -> tuple[list[injection.InjectorStatus], set[str]]:
    """Return the processes that have announced themselves, and the names of those that the stream expects."""
    async with ControlClient(address) as client:
        return await client.list_injectors(stream), set((await client.routing(stream)).stream.expected_injectors)


async def _unfinished_others(stream: str, process: str, address: str, *, may_be_first: bool = False) -> set[str]:
    """Return the other processes of the stream that have not finished: announced and expected ones.

    Raises:
        RequestError: The process has not announced itself, and is not expected (NOT_FOUND). Without this check,
            finishing an unknown process would create it. ``may_be_first`` allows it while the stream has none.
    """
    announced, expected = await _processes(stream, address)
    known = {one.process for one in announced} | expected
    if process not in known and not (may_be_first and not known):
        raise RequestError(
            FailureCode.NOT_FOUND,
            f"stream {stream!r} has no injector process {process!r}{did_you_mean(process, sorted(known))}",
            "`millwheel injector list` shows those that there are",
        )
    return known - {process} - {one.process for one in announced if one.finished or one.retired}


@app.command()
def retire(
    stream: Annotated[str, typer.Argument(help="The stream that it fed.", autocompletion=complete_streams)],
    process: Annotated[str, typer.Argument(help="The process's name.")],
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Free the space that a finished injector process takes in the cluster. Its name cannot be used again."""
    if not yes:
        confirm(f"Forget the records of injector process {process} of stream {stream}?")

    ask(lambda client: client.retire_injector(stream, process), address, timeout)
    if output is not OutputFormat.TABLE:
        print_plain({"stream": stream, "process": process, "state": "retired"}, output)
        return
    print(f"injector process {process} of stream {stream} is retired")


@app.command()
def queries(
    output: Output = OutputFormat.TABLE, address: Address = DEFAULT_ADDRESS, timeout: Timeout = DEFAULT_DEADLINE_SECONDS
) -> None:
    """List the queries of batch sources (Spark), each with its last committed batch."""
    found = ask(lambda client: client.batch_cursors(), address, timeout)
    if output is not OutputFormat.TABLE:
        print_plain([_plain_cursor(one) for one in found], output)
        return
    shown = [(one.query, one.committed_batch, "retired" if one.retired else "") for one in found]
    print_table(("query", "batch", "state"), shown, empty="no queries")


def _plain_cursor(cursor: injection.BatchCursor) -> dict[str, Plain]:
    return {"query": cursor.query, "batch": cursor.committed_batch, "retired": cursor.retired}


@app.command("retire-query")
def retire_query(
    query: Annotated[str, typer.Argument(help="The query, as `millwheel injector queries` shows it.")],
    yes: Yes = False,
    output: Output = OutputFormat.TABLE,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """Free the space that a batch source's query takes. Use it only if the query never resumes from its checkpoint."""
    if not yes:
        question = f"Forget query {query}? If its records come again, they are taken for new records."
        confirm(question)

    ask(lambda client: client.retire_query(query), address, timeout)
    if output is not OutputFormat.TABLE:
        print_plain({"query": query, "retired": True}, output)
        return
    print(f"query {query} is retired")
