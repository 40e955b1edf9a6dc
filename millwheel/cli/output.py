"""Answers on stdout: as tables for people, as JSON or YAML for programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table

__all__ = ["OutputFormat", "Plain", "print_plain", "print_table", "to_yaml"]

Plain: TypeAlias = "Mapping[str, Plain] | Sequence[Plain] | str | int | float | bool | None"
"""What JSON can say."""


class OutputFormat(StrEnum):
    """The values of -o."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def print_plain(value: Plain, output: OutputFormat) -> None:
    """Print ``value`` as JSON or YAML."""
    text = to_yaml(value) if output is OutputFormat.YAML else json.dumps(value, indent=2, ensure_ascii=False)
    sys.stdout.write(text.rstrip("\n") + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "") -> None:
    """Print a table without lines; ``empty`` instead where there are no rows. In a pipe no cell is cut."""
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
    # Without the spaces after the last cell, which fill every line up to the longest one.
    sys.stdout.write("".join(line.rstrip() + "\n" for line in drawn.get().splitlines()))


_PLAIN_SCALAR: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
# What YAML takes for a line's end or forbids, and JSON leaves as it is.
_UNPRINTABLE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_RESERVED: Final = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def to_yaml(value: Plain) -> str:
    """``value`` as a block of YAML 1.2 that 1.1 readers understand alike: whatever could be misread is quoted."""
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
