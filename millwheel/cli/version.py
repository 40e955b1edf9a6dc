"""``millwheel version``."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from millwheel.cli.extras import EXTRAS, is_installed
from millwheel.cli.options import Output
from millwheel.cli.output import JSON_FORMAT, OutputFormat, Plain, print_plain

__all__ = ["app", "print_version"]

app = typer.Typer(add_completion=False)


@app.command()
def version(output: Output = OutputFormat.TABLE) -> None:
    """Show the version of millwheel, what it runs on, and the extras that are installed here."""
    print_version(output)


def print_version(output: OutputFormat) -> None:
    """Print the versions of millwheel, Python, gRPC and the operating system, and the extras that are installed."""
    extras = [extra for extra in EXTRAS if is_installed(extra)]
    found: dict[str, Plain] = {
        "millwheel": metadata.version("openmillwheel"),
        "json_format": JSON_FORMAT,
        "python": platform.python_version(),
        "grpc": metadata.version("grpcio"),
        "platform": platform.platform(terse=True),
        "extras": list[Plain](extras),
    }
    if output is OutputFormat.TABLE:
        print(f"millwheel {found['millwheel']} (Python {found['python']}, gRPC {found['grpc']}, {found['platform']})")
        print(f"extras: {', '.join(extras) or 'none'}")
    else:
        print_plain(found, output)
