"""``millwheel stream log``: delete."""

from __future__ import annotations

import typer

from millwheel.cli.asking import Yes, confirm
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Stream, Timeout
from millwheel.cli.reaching import ask
from millwheel.client.control import ControlClient
from millwheel.client.subscription.cursors import list_cursors
from millwheel.rpc.channel import DEFAULT_DEADLINE_SECONDS
from millwheel.rpc.failures import FailureCode, RequestError

__all__ = ["app"]

app = typer.Typer(help="The log of a stream, which keeps its records for readers outside.", no_args_is_help=True)


@app.callback()
def _verbs() -> None:
    """The log of a stream, which keeps its records for readers outside."""


@app.command()
def delete(
    stream: Stream,
    yes: Yes = False,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = DEFAULT_DEADLINE_SECONDS,
) -> None:
    """End the log of a stream that a computation reads, too. What the log keeps is deleted.

    The first reader of a stream begins its log: a tail, a table or a cursor. From then on each record is written for
    the log, too, also when no reader is left. This command ends that. The computations that read the stream notice
    nothing. A log with cursors is not deleted: first delete the cursors. A later reader begins another log.

    Example: millwheel stream log delete zeitgeist/queries
    """
    if not yes:
        confirm(f"Delete the log of stream {stream} with the records that it keeps?")

    async def work(client: ControlClient) -> None:
        if cursors := await list_cursors(stream, client):
            names = ", ".join(one.name for one in cursors)
            raise RequestError(
                FailureCode.FAILED_PRECONDITION,
                f"the log of stream {stream} keeps records for the cursors {names}",
                f"if they are not needed, delete each by `millwheel stream cursors delete {stream} CURSOR`",
                reason="LOG_HAS_CURSORS",
            )
        answer = await client.delete_stream_log(stream)
        print(f"the log of stream {answer.stream} is deleted" if answer.deleted else f"stream {stream} has no log")

    ask(work, address, timeout)
