"""Ids of dead letters on the command line: ``17@23`` is letter 17 of the log with the number 23.

Invariant: a command that changes letters names their log. A topology that is cancelled and submitted again has another
log, whose letters have the same numbers. Who could break it: a list that was printed before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import typer

__all__ = ["LetterIds", "letter_id_text", "parse_letter_ids"]


class LetterIds(NamedTuple):
    """Letters of one log. ``log``: its number; 0 if none was named."""

    offsets: frozenset[int]
    log: int


def letter_id_text(offset: int, log: int) -> str:
    """Return the id of a letter as ``list`` shows it."""
    return f"{offset}@{log}"


def parse_letter_ids(texts: Iterable[str], hint: str, *, bound: bool) -> LetterIds:
    """Read ids. ``bound``: each must name its log. ``hint``: the argument or option that has them.

    Raises:
        typer.BadParameter: One is no id, or they name different logs.
    """
    offsets: set[int] = set()
    logs: set[int] = set()
    for text in texts:
        offset, at, log = text.partition("@")
        if not offset.isdecimal() or (at and not log.isdecimal()):
            raise typer.BadParameter(f"{text!r} is no letter: `list` shows ids such as 17@23", param_hint=hint)
        if bound and not at:
            raise typer.BadParameter(
                f"{text!r} does not say of which log: copy the id from `list`, such as {text}@23", param_hint=hint
            )
        offsets.add(int(offset))
        logs.add(int(log or 0))
    if len(logs) > 1:
        raise typer.BadParameter("these letters are of different logs: list them again", param_hint=hint)
    return LetterIds(frozenset(offsets), min(logs, default=0))
