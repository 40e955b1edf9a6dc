"""``millwheel inject http``."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from millwheel.cli.metrics_page import client_metrics
from millwheel.cli.options import DEFAULT_ADDRESS, Address, Stream
from millwheel.cli.times import timestamp_field
from millwheel.client.holds.unacked import unacked_explainer
from millwheel.client.injector import Injector, InjectorSettings
from millwheel.client.injector.likelihood import ANY_TIMESTAMP_VARIABLE
from millwheel.config.addresses import is_loopback
from millwheel.connectors.files.parsing import TimeUnit
from millwheel.injectors.leaving import step_aside
from millwheel.model.time import seconds
from millwheel.rpc.identity import process_tls

if TYPE_CHECKING:
    from millwheel.injectors.http.gateway import HttpSettings
    from millwheel.injectors.http.serving import ServingLimits
    from millwheel.rpc.access.authorization import Authorization

__all__ = ["inject_http"]

_DEFAULT_PORT: Final = 8480
_SOURCE: Final = "http"


def inject_http(
    stream: Stream,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 is every address of this machine.")] = (
        "127.0.0.1"
    ),
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The port to listen on; 0 takes a free one.")
    ] = _DEFAULT_PORT,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Listen beyond this machine without TLS: everybody who reaches the port can send records.",
        ),
    ] = False,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with the roles of certificates and tokens: who has role inject may send. It needs TLS."
        ),
    ] = None,
    timestamp: Annotated[
        str,
        typer.Option(help="The field with a record's time. Default: the header Millwheel-Event-Time, or the receipt."),
    ] = "",
    unit: Annotated[
        TimeUnit | None,
        typer.Option(help="How that time is written: a number of units since 1970, or ISO 8601 with an offset."),
    ] = None,
    id_field: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="FIELD",
            help="The field with a record's id. Default: a record is known by the key of its request and its place.",
        ),
    ] = "",
    key_header: Annotated[
        str, typer.Option(help="The header with the key of a request, which stays when the request is repeated.")
    ] = "Idempotency-Key",
    keyless: Annotated[
        bool, typer.Option("--keyless", help="Take requests without a key, too. Repeated ones count as new.")
    ] = False,
    any_timestamp: Annotated[
        bool,
        typer.Option(
            "--any-timestamp",
            envvar=ANY_TIMESTAMP_VARIABLE,
            help="Take times before 1980 or more than a year ahead, too.",
        ),
    ] = False,
    allowed_delay: Annotated[
        float, typer.Option(min=0, help="Seconds that a record may be older than the clock without being late.")
    ] = 5.0,
    idle_after: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="After so many seconds without a request, the low watermark does not wait for this process. Default:"
            " it follows the clock.",
        ),
    ] = None,
    max_body: Annotated[
        int, typer.Option(min=1_024, max=64 << 20, help="The most bytes of a body, also when it is unpacked.")
    ] = 4 << 20,
    max_requests: Annotated[
        int, typer.Option(min=1, max=10_000, help="The most requests at a time. More are answered with 429.")
    ] = 100,
    body_seconds: Annotated[float, typer.Option(min=0.1, help="The most seconds that a body may take.")] = 15.0,
    answer_seconds: Annotated[
        float, typer.Option(min=0.1, help="The most seconds that a request waits until its records have taken effect.")
    ] = 30.0,
    process: Annotated[
        str, typer.Option(help="This process's name, by default http-HOST; a second one of a name ends the first.")
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="Where keys and ids are unique. Processes that take each other's requests name the same one."
        ),
    ] = _SOURCE,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65_535, help="Serve Prometheus metrics on this port of 127.0.0.1. Default: none."),
    ] = None,
    address: Address = DEFAULT_ADDRESS,
) -> None:
    """Take records by POST requests, until Ctrl-C. A request that is repeated with its key has no second effect.

    Each is answered when its records have taken effect. Beyond this machine the command listens with TLS
    (`millwheel --tls-ca ... --tls-cert ... --tls-key ... inject http STREAM`), or with --insecure.
    """
    if not insecure and not is_loopback(host.strip("[]")) and process_tls() is None:
        raise typer.BadParameter(
            f"{host} is not loopback, and there is no TLS: everybody who reaches the port could send records. Name "
            "the files --tls-ca, --tls-cert and --tls-key (before `inject`), or, in a network that you trust, add "
            "--insecure",
            param_hint="--host",
        )
    if policy is not None and process_tls() is None:
        raise typer.BadParameter(
            "a policy is of no use without TLS: name --tls-ca, --tls-cert and --tls-key (before `inject`)",
            param_hint="--policy",
        )
    # Late imports: other commands do not wait for aiohttp.
    import uvloop

    from millwheel.injectors.http.bodies import BodyReader
    from millwheel.injectors.http.gateway import HttpSettings
    from millwheel.injectors.http.serving import ServingLimits

    reader = BodyReader(timestamp_field(timestamp, unit), id_field, any_timestamp)
    idle = None if idle_after is None else seconds(idle_after)
    settings = HttpSettings(reader, key_header, keyless, seconds(allowed_delay), idle, answer_seconds)
    limits = ServingLimits(max_body, body_seconds, max_requests, key_header=key_header)
    injector = Injector(
        stream,
        address=address,
        process=process or f"http-{socket.gethostname()}",
        source=source,
        # The gateway checks the times of records, which come from outside. It makes the promises itself.
        settings=InjectorSettings(
            check_at_worker=True, any_timestamp=any_timestamp, explain=unacked_explainer(address)
        ),
    )
    _log_as_daemons()
    try:
        uvloop.run(_serve(injector, host, port, settings, limits, policy, metrics_port))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


def _log_as_daemons() -> None:
    """Write warnings with their values: a line of the audit log has the peer and the reason there."""
    from millwheel.config import LoggingSection
    from millwheel.server.logs import configure_logging

    configure_logging(LoggingSection(level="warning"))


def _access(policy: Path | None) -> Authorization | None:
    """Who may send. None: without TLS there are no principals."""
    if process_tls() is None:
        return None
    from millwheel.config.access_policy import PolicyFile
    from millwheel.rpc.access.authorization import Authorization
    from millwheel.server.access import DEFAULT_POLICY, FixedPolicy

    return Authorization(FixedPolicy(DEFAULT_POLICY) if policy is None else PolicyFile(policy))


async def _serve(
    injector: Injector,
    host: str,
    port: int,
    settings: HttpSettings,
    limits: ServingLimits,
    policy: Path | None,
    metrics_port: int | None,
) -> None:
    from millwheel.injectors.http.gateway import HttpGateway
    from millwheel.injectors.http.serving import listen, serve_gateway

    # SIGTERM from a service manager acts like Ctrl-C.
    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    access = _access(policy)
    # The port comes first. Otherwise a second gateway by mistake would end the first one, which has its name.
    with client_metrics(metrics_port), listen(host, port) as listener:
        await injector.open()
        try:
            gateway = HttpGateway(injector, settings)
            async with AsyncExitStack() as stack:
                if access is not None:
                    watching = asyncio.create_task(access.watch())
                    stack.callback(watching.cancel)
                url = await serve_gateway(stack, gateway, listener, limits, process_tls(), access)
                typer.echo(url)
                sys.stdout.flush()
                await gateway.run()
        finally:
            await step_aside(injector)
            await injector.close()
