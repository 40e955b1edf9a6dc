"""How the records of computations run: by columns, many at a time, or one by one, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from millwheel.cli.output import Plain, print_table
from millwheel.model.stream_names import full_name
from millwheel.rpc.v1 import inspection_pb2 as wire
from millwheel.sdk.column_plan import column_plan
from millwheel.sdk.computation import NO_WINDOWS
from millwheel.sdk.plan import Plan

__all__ = ["plain_columns", "print_column_use", "print_columns"]

_HEADS: Final = ("computation", "input", "by columns", "why not")
_USE_HEADS: Final = ("computation", "input", "records run", "why not by columns", "share by columns")


def print_columns(plan: Plan) -> None:
    """Print a table of the computations that have windows, with a row for each input of those by columns."""
    rows: list[tuple[str, str, str, str]] = []
    for name in sorted(plan.computations):
        declared = plan.computations[name]
        found = column_plan(declared, sorted(declared.inputs), plan)
        if found.by_hooks:
            rows += [(name, "", "no", found.by_hooks)] if found.by_hooks != NO_WINDOWS else []
            continue
        for stream, why in found.by_values.items():
            use = "windows, and not tables" if why else "windows and tables"
            rows.append((name, full_name(plan.name, stream), use, why))
    if rows:
        print()
        print_table(_HEADS, rows)


def plain_columns(use: wire.ComputationColumns | None, hooks: Sequence[wire.HookTime]) -> dict[str, Plain] | None:
    """Describe how the records of a computation run. None: no worker has reported it.

    Args:
        use: What the workers report.
        hooks: The times of its hooks.
    """
    if use is None:
        return None
    taken = next((one for one in hooks if one.hook == "process_record"), wire.HookTime())
    by_columns = not use.in_batches and not use.by_records
    return {
        "by_columns": by_columns,
        "in_batches": use.in_batches,
        "why_not": use.by_records or None,
        "inputs": [{"stream": one.stream, "why_by_rows": one.by_values or None} for one in use.inputs],
        "records_by_columns": taken.by_columns,
        "share_by_columns": round(taken.by_columns / taken.calls, 4) if by_columns and taken.calls else None,
    }


def _tables(of_sink: bool, why: str | None) -> str:
    """What happens to tables, if that is not said yet. ``why``: why a value is made for each row."""
    if why:
        return ", tables by rows"
    return ", tables by columns" if of_sink else ""


def print_column_use(computations: Sequence[dict[str, Any]]) -> None:
    """Print a table of how the records of described computations run, if a worker has reported it."""
    rows: list[Sequence[object]] = []
    for name, use in ((one["name"], one["columns"]) for one in computations if one["columns"] is not None):
        run = "many at a time" if use["in_batches"] else "by columns" if use["by_columns"] else "by records"
        if not use["inputs"]:
            rows.append((name, "", run, use["why_not"] or "", ""))
        share = "" if use["share_by_columns"] is None else f"{use['share_by_columns']:.1%}"
        for one in use["inputs"]:
            why = one["why_by_rows"]
            rows.append((name, one["stream"], run + _tables(use["in_batches"], why), why or "", share))
    if rows:
        print()
        print_table(_USE_HEADS, rows)
