"""Prints results to stdout: tables for people, JSON or YAML for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

__all__ = ["JSON_FORMAT", "OutputFormat", "Plain", "print_plain", "print_table", "to_yaml"]

JSON_FORMAT: Final = 1
"""The format of the fields of -o json and -o yaml: docs/json-output.md, which has the rule for raising it."""

Plain: TypeAlias = "Mapping[str, Plain] | Sequence[Plain] | str | int | float | bool | None"
"""A value that JSON can represent."""


class OutputFormat(StrEnum):
    """The values of the option -o."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def print_plain(value: Plain, output: OutputFormat) -> None:
    """Print ``value`` as JSON or YAML."""
    text = to_yaml(value) if output is OutputFormat.YAML else json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write(text.rstrip("\n") + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "") -> None:
    """Print a table without lines, or ``empty`` if there are no rows. Output to a pipe never cuts a cell."""
    if not rows and empty:
        print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 10_000
    with console.capture() as drawn:
        console.print(table, crop=False, soft_wrap=not console.is_terminal)
    # The console pads every line with spaces to the same length. They are removed here.
    sys.stdout.write("".join(line.rstrip() + "\n" for line in drawn.get().splitlines()))


_PLAIN_SCALAR: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
# Characters that YAML forbids or reads as the end of a line, and that JSON does not escape.
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_RESERVED: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def to_yaml(value: Plain) -> str:
    """Return ``value`` as YAML 1.2 that readers of YAML 1.1 understand in the same way. Ambiguous text is quoted."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Plain) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _entry(f"{_scalar(key)}:", item)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for item in value:
            first, *rest = _lines(item)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _entry(head: str, item: Plain) -> Iterator[str]:
    if isinstance(item, (Mapping, Sequence)) and not isinstance(item, str) and item:
        yield head
        yield from (f"  {line}" for line in _lines(item))
    else:
        yield f"{head} {_scalar(item)}"


def _scalar(value: Plain) -> str:
    if isinstance(value, str) and _PLAIN_SCALAR.fullmatch(value) and value.lower() not in _RESERVED:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
