"""Confirmation questions before a command deletes something for good. A script answers in advance with ``--yes``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from millwheel.cli.failing import output_of
from millwheel.cli.output import OutputFormat

__all__ = ["Yes", "confirm"]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without a question. A script needs this.")]


def confirm(question: str) -> None:
    """Print a question to stderr, and read the answer. The command ends unless the answer is yes.

    Raises:
        typer.Abort: the answer is no, or the question was interrupted.
        typer.BadParameter: there is no terminal, and stdin has no answer.
    """
    if sys.stdin is not None and sys.stdin.isatty():
        agreed = typer.confirm(question, err=True)
    else:
        if output_of(sys.argv[1:]) is OutputFormat.TABLE:  # a program reads stderr as one object
            typer.echo(f"{question} [y/N]", err=True)
        answer = "" if sys.stdin is None else sys.stdin.readline()
        if not answer:
            raise typer.BadParameter(
                "there is no terminal to ask on: pass --yes to do it without a question", param_hint="--yes"
            )
        agreed = answer.strip().lower() in ("y", "yes")
    if not agreed:
        raise typer.Abort
