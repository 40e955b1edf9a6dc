"""``millwheel server``: start-dev."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
import uvloop

from millwheel.config.addresses import is_loopback, optional_url
from millwheel.model.formats import NEWEST_FORMAT
from millwheel.rpc.addresses import DEFAULT_PORT
from millwheel.rpc.identity import process_tls

if TYPE_CHECKING:
    from millwheel.server.dev_server import DevServer, DevSettings

__all__ = ["DEFAULT_UI_PORT", "app", "refuse_exposure", "ui_port_of"]

LOOPBACK: Final = "127.0.0.1"
DEFAULT_UI_PORT: Final = 8433

app = typer.Typer(
    help="A server for development: a whole cluster in one process.", no_args_is_help=True, add_completion=False
)


class LogLevel(StrEnum):
    """The values of the option --log-level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@app.callback()
def _nouns() -> None:
    """A server for development: a whole cluster in one process."""


@app.command("start-dev")
def start_dev(
    db: Annotated[
        Path | None,
        typer.Option(help="The directory for all data; made where it is missing. Default: a temporary one."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every address of this machine.")] = (
        LOOPBACK
    ),
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen beyond this machine without TLS. Everybody who reaches the port can then do anything, and "
            "run code on this machine.",
        ),
    ] = False,
    advertise: Annotated[
        str,
        typer.Option(
            metavar="HOST[:PORT]",
            help="The address that clients are given. Default: --host, or with 0.0.0.0 this machine's address in its "
            "network.",
        ),
    ] = "",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
    ] = DEFAULT_PORT,
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Serve Prometheus metrics on this port. Default: none.")
    ] = None,
    ui_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65_535,
            help=f"Serve the web console on this port. Default: {DEFAULT_UI_PORT}, or a free one if that is in use or "
            "--port is not the default.",
        ),
    ] = None,
    ui: Annotated[bool, typer.Option(help="Serve the web console.")] = True,
    ui_read_only: Annotated[
        bool, typer.Option("--ui-read-only", help="Refuse what changes something in the web console.")
    ] = False,
    intervals: Annotated[
        int, typer.Option(min=1, max=1_000, help="Key intervals that each new computation begins with.")
    ] = 1,
    cache_mib: Annotated[int, typer.Option(min=1, help="Memory for the cached states of each interval, in MiB.")] = 256,
    check_values: Annotated[
        bool,
        typer.Option(help="Fail a hook whose production or state could not be read again as its declared type."),
    ] = True,
    columns: Annotated[
        bool,
        typer.Option(
            help="Keep tumbling windows of counts, sums, means, least and greatest numbers by columns. It needs data "
            "of format 3. Tables (send_table) are taken by columns with the extra 'arrow', and data of format 4. "
            "--cluster-format raises the format.",
        ),
    ] = True,
    slow_hook_seconds: Annotated[
        float, typer.Option(min=0, help="A hook that keeps the event loop so long is named in the log; 0: never.")
    ] = 1.0,
    policy: Annotated[
        Path | None,
        typer.Option(help="TOML file with the roles of certificates and tokens (docs/security.md). It needs TLS."),
    ] = None,
    otlp_endpoint: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Send spans of sampled records, and metrics, to this collector of OpenTelemetry: http://host:port.",
        ),
    ] = "",
    cluster_format: Annotated[
        int,
        typer.Option(
            min=0,
            max=NEWEST_FORMAT,
            help="Raise the data in --db to this format. Versions that do not know it refuse the data from then on. "
            "0: leave it; new data has the newest one.",
        ),
    ] = 0,
    log_level: Annotated[LogLevel, typer.Option(help="The least level that is logged, to stderr.")] = LogLevel.WARNING,
) -> None:
    """Run a whole cluster in one process, with its data in a directory, until Ctrl-C.

    Ctrl-C or SIGTERM ends it with exit code 0; the second one ends it at once. Beyond this machine it listens with
    TLS (`millwheel --tls-ca ... --tls-cert ... --tls-key ... server start-dev`), or with --insecure.
    """
    refuse_exposure(host, insecure)
    if policy is not None and process_tls() is None:
        raise typer.BadParameter(
            "a policy is of no use without TLS: name --tls-ca, --tls-cert and --tls-key (before `server`)",
            param_hint="--policy",
        )
    # A late import, so that other commands do not wait for the server's code.
    from millwheel.config import OtlpSection
    from millwheel.server.dev_server import DevSettings
    from millwheel.server.logs import log_crashes

    log_crashes()
    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = DevSettings(
        db,
        host,
        port,
        metrics_port,
        ui_port_of(ui_port, port, host) if ui else None,
        ui_read_only,
        intervals,
        cache_mib << 20,
        advertise,
        check_values=check_values,
        policy=policy,
        slow_hook=slow_hook_seconds,
        cluster_format=cluster_format,
        columns=columns,
        otlp=OtlpSection(_collector(otlp_endpoint), delay_seconds=1.0, metrics_seconds=15.0),
    )
    uvloop.run(_serve(settings))


def _collector(url: str) -> str:
    try:
        return optional_url(url)
    except ValueError as error:
        raise typer.BadParameter(f"{url!r} is not http://host:port: {error}", param_hint="--otlp-endpoint") from error


def ui_port_of(given: int | None, port: int, host: str) -> int:
    """Return the port of the console: the given one, or the default one if it is free, or 0 for any free one."""
    if given is not None:
        return given
    if port != DEFAULT_PORT:
        return 0
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host.strip("[]"), DEFAULT_UI_PORT))
        return DEFAULT_UI_PORT
    return 0


def refuse_exposure(host: str, insecure: bool) -> None:
    """Raise a usage error if other machines can reach ``host`` without TLS and ``insecure`` is not set."""
    if insecure or is_loopback(host.strip("[]")) or process_tls() is not None:
        return
    raise typer.BadParameter(
        f"{host} is not loopback, and there is no TLS: everybody who reaches the port could do anything, and run code "
        "on this machine. Name the files --tls-ca, --tls-cert and --tls-key (before `server`), or, in a network that "
        "you trust, add --insecure",
        param_hint="--host",
    )


async def _serve(settings: DevSettings) -> None:
    from millwheel.server.daemon import stop_on_signals
    from millwheel.server.dev_server import serve

    stop = asyncio.Event()
    stop_on_signals(stop)

    def started(server: DevServer) -> None:
        kept = "temporary, gone with the server" if settings.db is None else "kept"
        typer.echo(f"millwheel is ready at {server.address}; its data is in {server.db} ({kept})")
        if server.console:
            typer.echo(f"its console is at {server.console}")

    async def until() -> None:
        await stop.wait()

    await serve(settings, started, until)
