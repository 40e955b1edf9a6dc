"""What of each computation's work a worker may do by columns, for ``topology validate``."""

from __future__ import annotations

from typing import Final

from millwheel.cli.output import print_table
from millwheel.model.stream_names import full_name
from millwheel.sdk.column_plan import column_plan
from millwheel.sdk.computation import NO_WINDOWS
from millwheel.sdk.plan import Plan

__all__ = ["print_columns"]

_HEADS: Final = ("computation", "input", "by columns", "why not")


def print_columns(plan: Plan) -> None:
    """Print a table of the computations that have windows, with a row for each input of those by columns."""
    rows: list[tuple[str, str, str, str]] = []
    for name in sorted(plan.computations):
        declared = plan.computations[name]
        found = column_plan(declared, sorted(declared.inputs), plan.streams)
        if found.by_hooks:
            rows += [(name, "", "no", found.by_hooks)] if found.by_hooks != NO_WINDOWS else []
            continue
        for stream, why in found.by_values.items():
            use = "windows, and not tables" if why else "windows and tables"
            rows.append((name, full_name(plan.name, stream), use, why))
    if rows:
        print()
        print_table(_HEADS, rows)
