"""``millwheel server``: start-dev."""

from __future__ import annotations

import asyncio
import logging
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import uvloop

if TYPE_CHECKING:
    from millwheel.cli.dev_server import DevServer, DevSettings

__all__ = ["app"]

app = typer.Typer(help="Servers: run one.", no_args_is_help=True, add_completion=False)


class LogLevel(StrEnum):
    """The values of --log-level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.callback()
def _nouns() -> None:
    """Servers: run one."""


@app.command("start-dev")
def start_dev(
    db: Annotated[Path | None, typer.Option(help="Where everything is kept; by default a temporary directory.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; loopback unless told otherwise.")] = (
        "127.0.0.1"
    ),
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="What clients are told to connect to; by default the address that it listens on, or, where that is "
            "every one (0.0.0.0), this machine's in its network.",
        ),
    ] = "",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")] = 7433,
    metrics_port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Serve Prometheus metrics here.")] = None,
    intervals: Annotated[int, typer.Option(min=1, max=1_000, help="Key intervals of each computation.")] = 1,
    cache_mib: Annotated[int, typer.Option(min=1, help="MiB of memory for the cached states of each interval.")] = 256,
    slow_hook_seconds: Annotated[
        float, typer.Option(min=0, help="A hook that keeps the event loop so long is named in the log; 0: never.")
    ] = 1.0,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged to stderr.")] = LogLevel.WARNING,
) -> None:
    """Run every role in one process, on an embedded database, until interrupted."""
    # Imported when a server is run: no other command waits for all that it is made of.
    from millwheel.cli.dev_server import DevSettings

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = DevSettings(db, host, port, metrics_port, intervals, cache_mib << 20, advertise, slow_hook_seconds)
    uvloop.run(_serve(settings))


async def _serve(settings: DevSettings) -> None:
    from millwheel.cli.dev_server import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def started(server: DevServer) -> None:
        kept = "temporary, gone with the server" if settings.db is None else "kept"
        typer.echo(f"millwheel is ready at {server.address}; its data is in {server.db} ({kept})")

    async def until() -> None:
        await stop.wait()

    await serve(settings, started, until)
