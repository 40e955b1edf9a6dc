"""The ``millwheel`` command: noun, then verb. Each noun has its own file, which is imported only when it is used."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from millwheel.cli.failing import exit_code_of, explain, output_of
from millwheel.cli.output import OutputFormat
from millwheel.rpc.identity import ENVIRONMENT, TOKEN_ENVIRONMENT, TlsFiles, TokenSource, use_tls, use_token
from millwheel.rpc.polling import poll_without_threads

__all__ = ["app", "main"]

_NOUNS: Final = {
    "server": "server:app",
    "topology": "topology:app",
    "computation": "computation:app",
    "stream": "stream:app",
    "watermark": "watermark:app",
    "key": "key:app",
    "timer": "timer:app",
    "dead-letter": "dead_letter:app",
    "interval": "interval:app",
    "cluster": "cluster:app",
    "event": "event:app",
    "injector": "injector:app",
    "inject": "inject:app",
    "snapshot": "snapshot:app",
    "master": "roles:master_app",
    "authority": "roles:authority_app",
    "worker": "roles:worker_app",
    "config": "config:app",
    "certificates": "certificates:app",
    "connectors": "connectors:app",
    "version": "version:app",
}
"""Module and variable of each noun's Typer application, as ``module:variable`` within this package."""


class _Nouns(TyperGroup):
    """Imports only the noun that the command line names. So a command does not wait for imports of other nouns."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _NOUNS:
            return None
        module, name = _NOUNS[cmd_name].split(":")
        command = typer.main.get_command(getattr(import_module(f"millwheel.cli.{module}"), name))
        command.name = cmd_name
        return command


app = typer.Typer(
    cls=_Nouns,
    name="millwheel",
    help="Fault-tolerant stream processing: run a server, submit topologies, and see what they do.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 failed, 2 wrong command line, 3 not found, 4 unavailable, 5 invalid, 6 conflict,"
    " 7 refused (no right to it), 130 interrupted. With -o json an error is a JSON object on stderr.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        # A late import, as for all commands.
        from millwheel.cli.version import print_version

        print_version(output_of(sys.argv[1:]))
        raise typer.Exit


@app.callback()
def _connections(
    tls_ca: Annotated[
        Path | None,
        typer.Option(help=f"PEM file with the CA that signed the cluster's certificates [{ENVIRONMENT[0]}]."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help=f"PEM file with the certificate of this process [{ENVIRONMENT[1]}].")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help=f"PEM file with the key of that certificate [{ENVIRONMENT[2]}].")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(help=f"Bearer token for each call. The list of processes shows it [{TOKEN_ENVIRONMENT[0]}]."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help=f"File that has the bearer token [{TOKEN_ENVIRONMENT[1]}].")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version, and exit.")
    ] = False,
) -> None:
    """Fault-tolerant stream processing: run a server, submit topologies, and see what they do."""
    if token is not None and token_file is not None:
        raise typer.BadParameter("give --token or --token-file, not both")
    if token is not None or token_file is not None:
        use_token(TokenSource(token or "", token_file))
    if tls_ca is None and tls_cert is None and tls_key is None:
        return
    if tls_ca is None or tls_cert is None or tls_key is None:
        raise typer.BadParameter("TLS is mutual: --tls-ca, --tls-cert and --tls-key go together")
    use_tls(TlsFiles(tls_ca, tls_cert, tls_key))


def main() -> None:
    """Run the command line, and exit with its code."""
    poll_without_threads()
    output = output_of(sys.argv[1:])
    try:
        # In table mode, Typer itself reports errors in the command line.
        code = app(standalone_mode=output is OutputFormat.TABLE)
    except (Exception, KeyboardInterrupt) as error:
        explain(error, output)
        sys.exit(exit_code_of(error))
    sys.exit(code)
