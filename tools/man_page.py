"""Write docs/millwheel.1, the man page of the command line, from the commands themselves.

Each command is a section with its help, its arguments and its options. Shared options are described once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import typer

from millwheel.cli.failing import __doc__ as exit_codes
from millwheel.cli.main import app

__all__ = ["PAGE", "man_page"]

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "millwheel.1"
_SHARED: Final = ("--output", "--address", "--timeout", "--patience")
_MADE_BY_TYPER: Final = ("--install-completion", "--show-completion", "--help")
_COMPLETION: Final = (
    "Installs completion for the shell that it is called from: bash, zsh, fish or PowerShell. Names of topologies, "
    "streams, computations and intervals are completed too, if a server answers within a second."
)
_ENVIRONMENT: Final = {
    "MILLWHEEL_ADDRESS": "The masters' addresses, as --address.",
    "MILLWHEEL_RPC_TLS_CA, MILLWHEEL_RPC_TLS_CERT, MILLWHEEL_RPC_TLS_KEY": "As --tls-ca, --tls-cert and --tls-key.",
    "MILLWHEEL_ANY_TIMESTAMP": "1: as --any-timestamp.",
    "MILLWHEEL_DEBUG": "1: an error comes with its traceback.",
}


def man_page() -> str:
    """Return the page."""
    command = typer.main.get_command(app)
    leaves = list(_leaves(command, ("millwheel",)))
    waits = next(leaf for _, leaf in leaves if {one.opts[0] for one in leaf.params} >= {*_SHARED})
    parts = [
        '.TH MILLWHEEL 1 "" "MillWheel" "User Commands"',
        ".SH NAME",
        "millwheel \\- fault\\-tolerant stream processing",
        ".SH SYNOPSIS",
        ".B millwheel",
        "[OPTIONS] NOUN VERB [ARGUMENTS] [OPTIONS]",
        ".SH DESCRIPTION",
        _text(command.help or ""),
        ".SH GLOBAL OPTIONS",
        *_parameters(command, lambda name: name not in _MADE_BY_TYPER),
        *_entry("--install-completion", _COMPLETION),
        ".SH OPTIONS OF MOST COMMANDS",
        *_parameters(waits, lambda name: name in _SHARED),
        ".SH COMMANDS",
    ]
    for path, leaf in leaves:
        parts += [f".SS {_text(' '.join(path))} {_text(_usage(leaf))}", *_paragraphs(leaf.help)]
        parts += _parameters(leaf, lambda name: name not in (*_SHARED, *_MADE_BY_TYPER))
    parts += [".SH EXIT STATUS"]
    for code, meaning in _codes():
        parts += _entry(code, meaning)
    parts += [".SH ENVIRONMENT"]
    for name, meaning in _ENVIRONMENT.items():
        parts += _entry(name, meaning)
    return "\n".join(parts) + "\n"


def _leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that is no group, by the words that a user types."""
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from _leaves(command.get_command(context, name), (*path, name))


def _usage(command: Any) -> str:
    """The arguments as the command's usage shows them."""
    return " ".join(command.collect_usage_pieces(typer.Context(command)))


def _parameters(command: Any, wanted: Callable[[str], bool]) -> Iterator[str]:
    """The entries of a command's arguments, and of its wanted options, as its help shows them."""
    for one in command.params:
        record = one.get_help_record(typer.Context(command)) if wanted(one.opts[0]) else None
        if record is not None:
            yield from _entry(*record)


def _codes() -> Iterator[tuple[str, str]]:
    """The rows of the table of exit codes in the module's docstring."""
    rows = [line for line in (exit_codes or "").splitlines() if re.match(r"\d+ |      ", line)]
    for row in re.split(r"\n(?=\d)", "\n".join(rows)):
        code, _, meaning = row.partition(" ")
        yield code, meaning


def _entry(head: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f"\\fB{_text(head)}\\fR"
    yield _text(text)


def _paragraphs(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ".PP"
        yield _text(paragraph)


def _text(text: str) -> str:
    """Escape text for roff: a backslash, a hyphen that is typed, and what begins a request."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


if __name__ == "__main__":
    PAGE.write_text(man_page())
