"""Every command, argument and option has a help text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from rich.text import Text

from millwheel.cli.main import app


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command and group, by the words that a user types."""
    yield " ".join(path), command
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


def test_every_command_is_explained() -> None:
    assert [path for path, command in commands(typer.main.get_command(app)) if not command.help] == []


def test_every_argument_and_option_is_explained() -> None:
    silent = [
        f"{path} {parameter.name}"
        for path, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if not parameter.help and not getattr(parameter, "hidden", False)
    ]
    assert silent == []


def test_helps_show_their_brackets() -> None:
    """Regression: what stands in brackets is taken for markup, so `openmillwheel[arrow]` lost its extra."""
    lost = [
        f"{path}: {text}"
        for path, command in commands(typer.main.get_command(app))
        for text in (command.help or "", *(getattr(one, "help", "") or "" for one in command.params))
        if Text.from_markup(text).plain != text
    ]
    assert lost == []


def test_helps_speak_of_what_is_in_plain_words() -> None:
    odd = ("told", "whoever", "whatever", "nobody", "anew")
    found = [
        f"{path}: {word}"
        for path, command in commands(typer.main.get_command(app))
        for text in (command.help or "", *(getattr(one, "help", "") or "" for one in command.params))
        for word in odd
        if word in text.lower().split()
    ]
    assert found == []
