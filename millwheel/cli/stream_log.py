"""``millwheel stream log``: delete."""

from __future__ import annotations

from typing import Annotated

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Stream, Timeout
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS

__all__ = ["app"]

app = typer.Typer(help="The log of a stream, which keeps its records for readers outside.", no_args_is_help=True)


@app.callback()
def _verbs() -> None:
    """The log of a stream, which keeps its records for readers outside."""


@app.command()
def delete(
    stream: Stream,
    force: Annotated[
        bool, typer.Option("--force", help="Also a log with cursors, or one whose owner does not answer.")
    ] = False,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """End the log of a stream that a computation reads, too. What the log keeps is deleted.

    The first reader of a stream begins its log: a tail, a table or a cursor. From then on each record is written for
    the log, too, also when no reader is left. This command ends that. The computations that read the stream notice
    nothing. A log with cursors is not deleted without --force. A later reader begins another log.

    Example: millwheel stream log delete zeitgeist/queries
    """
    if not yes:
        kept = "its cursors and the records that it keeps" if force else "the records that it keeps"
        confirm(f"Delete the log of stream {stream} with {kept}?")

    async def work(client: ControlClient) -> None:
        answer = await client.delete_stream_log(stream, force=force)
        print(f"the log of stream {answer.stream} is deleted" if answer.deleted else f"stream {stream} has no log")

    ask(work, address, timeout)
