"""Several aggregates of the same records, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import ne
from typing import Any, TypedDict

import msgspec
from msgspec.structs import asdict

from millwheel.agg.aggregator import Aggregator, adding, objecting, objection_of, result_type_of
from millwheel.agg.folds import SeveralFold
from millwheel.agg.numbers import one_more, plus
from millwheel.agg.reading import always, same
from millwheel.sdk.errors import UsageError
from millwheel.sdk.exact_types import is_writable
from millwheel.sdk.field_paths import attribute

__all__ = ["combined", "several"]


def several(aggregators: Mapping[str, Aggregator[Any, Any]]) -> Aggregator[Any, dict[str, Any]]:
    """One aggregator that computes all of them. Its result has the results by name.

    The accumulator has a field for each name. So an aggregate may be added later: it starts with the records from then
    on.

    Args:
        aggregators: The aggregators, by the names of their results.

    Raises:
        UsageError: One of them is no aggregator.
    """
    one = combined(aggregators)
    typed_dict: Any = TypedDict  # the names are known when the program runs
    by_name: Aggregator[Any, dict[str, Any]] = replace(
        one,
        result=lambda kept: asdict(one.result(kept)),
        result_type=typed_dict("Row", {name: result_type_of(each) for name, each in aggregators.items()}),
        specialise=lambda record_type: several({name: each.bind(record_type) for name, each in aggregators.items()}),
    )
    by_name._without_fold = one._without_fold
    return objecting(objection_of(one), adding("", by_name, one._fold))


def combined(aggregators: Mapping[str, Aggregator[Any, Any]]) -> Aggregator[Any, Any]:
    """:func:`several`, but the result has the results as attributes: no dict is made for each result."""
    stated: Mapping[str, object] = aggregators
    for name, given in stated.items():
        if not isinstance(given, Aggregator):
            hint = ": results before the end need a window" if name == "early" else "; options are given by options={…}"
            raise UsageError(f"{name}={given!r} is no aggregate, such as agg.count(){hint}")
    fields = [(name, one.accumulator, msgspec.field(default_factory=one.new)) for name, one in aggregators.items()]
    accumulator = msgspec.defstruct("Accumulators", fields)
    row = msgspec.defstruct("Row", [(name, result_type_of(one)) for name, one in aggregators.items()])
    compiled = _compile(accumulator, row, aggregators)

    def merge(a: Any, b: Any) -> Any:
        for name, one in aggregators.items():
            setattr(a, name, one.merge(getattr(a, name), getattr(b, name)))
        return a

    folds = {name: one._fold for name, one in aggregators.items() if one._fold is not None}
    made: Aggregator[Any, Any] = Aggregator(
        accumulator,
        accumulator,
        compiled["add"],
        merge,
        same if all(one.result is same for one in aggregators.values()) else compiled["result"],
        row,
        lambda record_type: combined({name: one.bind(record_type) for name, one in aggregators.items()}),
        compiled["differ"],
    )
    made._without_fold = tuple(name for name in aggregators if name not in folds)
    objections = [f"{name}: {text}" for name, one in aggregators.items() if (text := objection_of(one))]
    fold = SeveralFold(folds, accumulator) if len(folds) == len(aggregators) else None
    return objecting("; ".join(objections), adding("", made, fold))


def _compile(accumulator: type, row: type, aggregators: Mapping[str, Aggregator[Any, Any]]) -> dict[str, Any]:
    """``add``, ``result`` and ``differ``, from source code: loops over the names take as long as the aggregates.

    ``add`` makes a new accumulator only where ``differ`` compares it with the one before, and something has changed.
    """
    functions: dict[str, Any] = {"new": accumulator, "row": row}
    added, results, differences = {}, [], []
    for number, (name, one) in enumerate(aggregators.items()):
        called = {"add": one.add, "merge": one.merge, "result": one.result, "differ": one.differ}
        functions.update({f"{function}_{number}": given for function, given in called.items()})
        kept, other = attribute("kept", name), attribute("other", name)
        if one._item:
            added[name] = f"{kept} + {one._item}" if one.merge is plus else f"merge_{number}({kept}, {one._item})"
        else:
            added[name] = f"add_{number}({kept}, record)"
        results.append(kept if one.result is same else f"result_{number}({kept})")
        differences.append(f"{kept} != {other}" if one.differ is ne else f"differ_{number}({kept}, {other})")
    always_differ = any(one.add is one_more for one in aggregators.values())
    compared = not always_differ and all(one.differ for one in aggregators.values())
    source = [
        "def add(kept, record):",
        "    value = record.value" if any("value" in one._item for one in aggregators.values()) else "",
        *(_copies(added) if compared else _changes(added)),
        f"def result(kept): return row({', '.join(results)})",
        f"def differ(kept, other): return {' or '.join(differences)}",
    ]
    exec("\n".join(source), functions)
    return functions | {"differ": functions["differ"] if compared else always if always_differ else None}


def _copies(added: Mapping[str, str]) -> list[str]:
    """Lines that make another accumulator of the expressions, unless they are the fields of ``kept``."""
    lines = [f"    made_{number} = {one}" for number, one in enumerate(added.values())]
    same_fields = [f"made_{number} is {attribute('kept', name)}" for number, name in enumerate(added)]
    made = ", ".join(f"made_{number}" for number in range(len(added)))
    return [*lines, f"    if {' and '.join(same_fields)}: return kept", f"    return new({made})"]


def _changes(added: Mapping[str, str]) -> list[str]:
    """Lines that assign the expressions to the fields of ``kept``."""
    lines = [
        f"kept.{name} = {one}" if is_writable(name) else f"setattr(kept, {name!r}, {one})"
        for name, one in added.items()
    ]
    return [f"    {line}" for line in (*lines, "return kept")]
