"""``millwheel config``: show the settings with their sources, and check them."""

from __future__ import annotations

from typing import Any, Final

import typer

from millwheel.cli.options import Output
from millwheel.cli.output import OutputFormat, Plain, print_plain, print_table
from millwheel.cli.setting_flags import with_settings
from millwheel.config import ConfigError, Configuration, Setting, Settings, declared
from millwheel.config.access_policy import read_policy
from millwheel.config.rules import unreadable
from millwheel.sdk.errors import Problem

__all__ = ["app"]

app = typer.Typer(help="Settings of the daemons: show and check them.", no_args_is_help=True, add_completion=False)

_MASK: Final = "********"


@app.command("show")
@with_settings(output=Output)
def show(configuration: Configuration, output: OutputFormat | None) -> None:
    """Print every setting, its value, and where the value comes from. Secrets are masked."""
    output = output or OutputFormat.TABLE
    rows = [(one, _shown(one, configuration.value(one))) for one in declared(Settings)]
    if output is OutputFormat.TABLE:
        cells = [(one.path, _text(value), configuration.sources[one.path]) for one, value in rows]
        print_table(("setting", "value", "from"), cells)
        return
    plain: list[dict[str, Plain]] = [
        {"setting": one.path, "value": value, "from": configuration.sources[one.path]} for one, value in rows
    ]
    print_plain(plain, output)


@app.command("check")
@with_settings()
def check(configuration: Configuration) -> None:
    """List everything that is wrong with the settings, and files that cannot be read. Exit code 5 if there is any."""
    problems = [
        Problem(f"{name} ({configuration.sources[name]})", message)
        for name, message in unreadable(configuration.settings)
    ]
    if problems:
        raise ConfigError(problems)
    if (policy := configuration.settings.security.policy) is not None:
        read_policy(policy)
    typer.echo(f"the configuration is good ({configuration.file or 'no file'})")


def _shown(setting: Setting, value: Any) -> Plain:
    if setting.secret and value:
        return _MASK
    if isinstance(value, tuple):
        return list(value)
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)


def _text(value: Plain) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return "" if value is None else str(value)
