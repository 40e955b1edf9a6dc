"""Options that the commands of all nouns share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from millwheel.cli.completing import complete_computations, complete_streams, complete_topologies
from millwheel.cli.output import OutputFormat
from millwheel.client.control import DEFAULT_ADDRESS

__all__ = [
    "DEFAULT_ADDRESS",
    "DEFAULT_PATIENCE_SECONDS",
    "Address",
    "AnyTopology",
    "Output",
    "Patience",
    "Place",
    "SignKey",
    "Stream",
    "Timeout",
]

Stream = Annotated[
    str,
    typer.Argument(
        help="The stream: TOPOLOGY/STREAM, or STREAM alone if it is unique.", autocompletion=complete_streams
    ),
]

Place = Annotated[
    str,
    typer.Argument(metavar="TOPOLOGY/COMPUTATION", help="The computation.", autocompletion=complete_computations),
]

AnyTopology = Annotated[
    str,
    typer.Argument(metavar="TOPOLOGY", help="Default: those of all topologies.", autocompletion=complete_topologies),
]

_CONNECTION: Final = "Connection"

Address = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="MILLWHEEL_ADDRESS",
        help="A master, as host or host:port; of several masters, all with commas between.",
        rich_help_panel=_CONNECTION,
    ),
]
"""The masters' addresses. The default is :data:`DEFAULT_ADDRESS`."""

Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        min=0.001,
        help="The most seconds that one call to the server may take.",
        rich_help_panel=_CONNECTION,
    ),
]
"""The deadline of each call, in seconds."""

DEFAULT_PATIENCE_SECONDS: Final = 10.0

Patience = Annotated[
    float,
    typer.Option(
        "--patience",
        min=0.0,
        help="Seconds to wait for a server that is still starting; 0 fails at once.",
        rich_help_panel=_CONNECTION,
    ),
]
"""Seconds that a command waits for a server that cannot be reached."""

SignKey = Annotated[
    Path | None,
    typer.Option(
        "--sign-key",
        envvar="MILLWHEEL_SIGN_KEY",
        help="Sign the code with this private key, for a cluster whose policy lists signers.",
    ),
]
"""The file of an Ed25519 key, as `millwheel certificates signing-key` makes it."""

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How the answer, or an error, is printed.")]
"""The output's format: table for people, json and yaml for programs. The fields of json and yaml are stable."""
