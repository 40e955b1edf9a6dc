"""``millwheel connectors``: those that can be imported here, and those of running topologies."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points, version
from typing import Any, Final

import typer

from millwheel.cli.connector_names import BUILT_IN
from millwheel.cli.connector_rows import show
from millwheel.cli.extras import is_installed
from millwheel.cli.options import Output
from millwheel.cli.output import OutputFormat, print_plain, print_table

__all__ = ["GROUP", "app"]

GROUP: Final = "millwheel.connectors"
"""The group of entry points by which a package announces its connectors."""
_PACKAGE: Final = "openmillwheel"

app = typer.Typer(
    help="Connectors: sources and sinks that are installed, and those that run.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(show)


@app.command(name="list")
def list_connectors(output: Output = OutputFormat.TABLE) -> None:
    """List the connectors that are installed here, what a program imports, and the extra that each needs.

    They are those of the library, and those that installed packages announce. The workers need the same packages.
    """
    rows = [*_built_in(), *_announced()]
    if output is not OutputFormat.TABLE:
        print_plain(rows, output)
        return
    shown = [
        (one["name"], one["kind"] or "", one["package"], one["version"], one["import"], _needs(one)) for one in rows
    ]
    print_table(("name", "kind", "package", "version", "import", "needs"), shown)


def _built_in() -> Iterator[dict[str, Any]]:
    for one in BUILT_IN:
        module, _, function = one.name.rpartition(".")
        place = f"millwheel.connectors.{module}" if module else "millwheel.connectors"
        yield {
            "name": one.name,
            "kind": one.kind,
            "package": _PACKAGE,
            "version": version(_PACKAGE),
            "import": f"{place}:{function}",
            "extra": one.extra or None,
            "only_for": one.only_for or None,
            "installed": not one.extra or is_installed(one.extra),
        }


def _announced() -> list[dict[str, Any]]:
    found = [
        {
            "name": one.name,
            "kind": None,
            "package": one.dist.name if one.dist else "",
            "version": one.dist.version if one.dist else "",
            "import": one.value,
            "extra": None,
            "only_for": None,
            "installed": True,
        }
        for one in entry_points(group=GROUP)
    ]
    return sorted(found, key=lambda one: (one["name"], one["package"]))


def _needs(one: dict[str, Any]) -> str:
    """Return the cell about the extra: what to install if it is missing."""
    if not one["extra"]:
        return ""
    purpose = f" for {one['only_for']}" if one["only_for"] else ""
    if one["installed"]:
        return f"{one['extra']}{purpose}: installed"
    return f"{one['extra']}{purpose}: install {_PACKAGE}[{one['extra']}]"
