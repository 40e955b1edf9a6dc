"""The ``millwheel`` command: noun, then verb. One file per noun; each has an ``app`` that is registered here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from millwheel.cli import (
    cluster,
    computation,
    config,
    injector,
    interval,
    key,
    roles,
    server,
    stream,
    topology,
    version,
    watermark,
)
from millwheel.cli.failing import exit_code_of, explain
from millwheel.rpc.security import ENVIRONMENT, TlsFiles, use_tls

__all__ = ["app", "main"]

app = typer.Typer(
    name="millwheel",
    help="Fault-tolerant stream processing: submit topologies, and look at what they do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed, 2 wrong command line, 3 not found, 4 unavailable, 5 invalid, 6 conflict.",
)


@app.callback()
def _connections(
    tls_ca: Annotated[
        Path | None, typer.Option(help=f"PEM file: who signed the cluster's certificates [{ENVIRONMENT[0]}].")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help=f"PEM file: the certificate that is shown [{ENVIRONMENT[1]}].")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help=f"PEM file: its key [{ENVIRONMENT[2]}].")] = None,
) -> None:
    """Fault-tolerant stream processing: submit topologies, and look at what they do."""
    if tls_ca is None and tls_cert is None and tls_key is None:
        return
    if tls_ca is None or tls_cert is None or tls_key is None:
        raise typer.BadParameter("TLS is mutual: --tls-ca, --tls-cert and --tls-key go together")
    use_tls(TlsFiles(tls_ca, tls_cert, tls_key))


app.add_typer(server.app, name="server")
app.add_typer(topology.app, name="topology")
app.add_typer(computation.app, name="computation")
app.add_typer(stream.app, name="stream")
app.add_typer(watermark.app, name="watermark")
app.add_typer(key.app, name="key")
app.add_typer(interval.app, name="interval")
app.add_typer(cluster.app, name="cluster")
app.add_typer(injector.app, name="injector")
app.add_typer(injector.inject_app, name="inject")
app.add_typer(roles.master_app, name="master")
app.add_typer(roles.authority_app, name="authority")
app.add_typer(roles.worker_app, name="worker")
app.add_typer(config.app, name="config")
app.command("version")(version.version)


def main() -> None:
    """Run the command line, and exit with its code."""
    try:
        app()
    except (Exception, KeyboardInterrupt) as error:
        explain(error)
        sys.exit(exit_code_of(error))
