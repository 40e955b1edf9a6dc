"""Builds commands whose options are settings. Each setting's flag is made from its declaration."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from millwheel.config import Configuration, Setting, Settings, declared, environment_name, flag_name, load

__all__ = ["with_settings"]

_FILE = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="MILLWHEEL_CONFIG", help="The TOML file; else /etc/millwheel/millwheel.toml, if it exists."
    ),
]


def with_settings(sections: Sequence[str] = (), **extra: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make ``work(configuration, **extra)`` a command with a flag for each setting of ``sections`` (default: all).

    ``extra``: the annotations of further options, whose defaults must be None. A secret setting has no flag, because
    the operating system's list of processes would show its value.
    """
    chosen = [one for one in declared(Settings) if not one.secret and (not sections or one.section in sections)]
    names = {f"{one.section}_{one.name}": one.path for one in chosen}
    parameters = [
        Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=_FILE),
        *(Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in extra.items()),
        *(_parameter(name, one) for name, one in zip(names, chosen, strict=True)),
    ]

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        def command(config: Path | None = None, **options: Any) -> None:
            rest = {name: options[name] for name in extra}
            work(_load(config, {names[name]: text for name, text in options.items() if name in names}), **rest)

        command.__doc__ = work.__doc__
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        return command

    return decorate


def _load(file: Path | None, options: dict[str, str | None]) -> Configuration:
    return load(file, os.environ, {name: text for name, text in options.items() if text is not None})


def _parameter(name: str, setting: Setting) -> Parameter:
    """Return a text parameter for a setting. Flags and environment variables share one parser and its errors."""
    option = typer.Option(
        flag_name(setting),
        help=f"{setting.meaning}{_default(setting)} [{environment_name(setting)}]",
        show_default=False,
        rich_help_panel=setting.section.capitalize(),
    )
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])


def _default(setting: Setting) -> str:
    """Return the default as a user writes it. The text is empty for an empty default, which the meaning explains."""
    value = setting.default
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        value = str(value).lower()
    return f" Default: {','.join(value) if isinstance(value, tuple) else value}."
