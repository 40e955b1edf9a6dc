"""Options that every noun's commands share."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from millwheel.cli.output import OutputFormat
from millwheel.client.control import DEFAULT_ADDRESS

__all__ = ["DEFAULT_ADDRESS", "Address", "Output", "Timeout"]

_CONNECTION: Final = "Connection"

Address = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="MILLWHEEL_ADDRESS",
        help="host:port of a master; several with commas.",
        rich_help_panel=_CONNECTION,
    ),
]
"""Which server to ask; the default is :data:`DEFAULT_ADDRESS`."""

Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.001, help="Seconds that one call may take.", rich_help_panel=_CONNECTION),
]
"""The deadline of each call, in seconds."""

Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How the answer is printed.")]
"""table for people; json and yaml for programs, whose fields stay as they are."""
