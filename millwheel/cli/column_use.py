"""What of each computation's work a worker may do by columns, for ``topology describe`` and ``validate``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.cli.output import Plain, print_table
from millwheel.rpc.v1 import topology_pb2 as specs

__all__ = ["plain_columns", "print_columns"]

_HEADS: Final = ("computation", "input", "by columns", "why not")


def plain_columns(spec: specs.ComputationSpec) -> dict[str, Plain] | None:
    """Describe it. None: the computation's version does not say it."""
    if not spec.HasField("columns"):
        return None
    by_windows = not spec.columns.by_hooks
    reasons = list(spec.columns.by_values) if by_windows else [""] * len(spec.inputs)
    inputs: list[Plain] = [
        {"stream": one.stream, "tables": by_windows and not why, "why_not": why or None}
        for one, why in zip(spec.inputs, reasons, strict=False)
    ]
    return {"windows": by_windows, "why_not": spec.columns.by_hooks or None, "inputs": inputs}


def print_columns(computations: Iterable[specs.ComputationSpec]) -> None:
    """Print a table, with a row for each input whose records may be added by columns."""
    rows: list[tuple[str, str, str, str]] = []
    for one in computations:
        if not one.HasField("columns"):
            continue
        if one.columns.by_hooks:
            rows.append((one.name, "", "no", one.columns.by_hooks))
            continue
        for given, why in zip(one.inputs, one.columns.by_values, strict=False):
            rows.append((one.name, given.stream, "windows, and not tables" if why else "windows and tables", why))
    if rows:
        print()
        print_table(_HEADS, rows)
