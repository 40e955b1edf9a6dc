"""``millwheel connectors``: the connectors that installed packages announce."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Final

import typer

from millwheel.cli.options import Output
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table

__all__ = ["GROUP", "app"]

GROUP: Final = "millwheel.connectors"
"""The group of entry points by which a package announces its connectors."""

app = typer.Typer(help="Connectors: sources and sinks that are installed.", no_args_is_help=True, add_completion=False)


@app.callback()
def _verbs() -> None:
    """Connectors: sources and sinks that are installed."""


@app.command(name="list")
def list_connectors(output: Output = OutputFormat.TABLE) -> None:
    """List the connectors of installed packages, and what a program imports to use each of them."""
    rows = sorted(
        (one.name, one.dist.name if one.dist else "", one.dist.version if one.dist else "", one.value)
        for one in entry_points(group=GROUP)
    )
    if output is OutputFormat.TABLE:
        print_table(("name", "package", "version", "import"), rows, "no installed package announces a connector")
        return
    fields = ("name", "package", "version", "import")
    found: list[Plain] = [dict(zip(fields, row, strict=True)) for row in rows]
    print_plain(found, output)
