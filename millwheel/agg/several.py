"""Several aggregates of the same records, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import ne
from typing import Any

import msgspec
from msgspec.structs import asdict

from millwheel.agg.aggregator import Aggregator, result_type_of
from millwheel.agg.numbers import one_more, plus
from millwheel.agg.reading import always, attribute, same
from millwheel.sdk.errors import UsageError

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
    return replace(
        one,
        result=lambda kept: asdict(one.result(kept)),
        specialise=lambda record_type: several({name: each.bind(record_type) for name, each in aggregators.items()}),
    )


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

    return Aggregator(
        accumulator,
        accumulator,
        compiled["add"],
        merge,
        same if all(one.result is same for one in aggregators.values()) else compiled["result"],
        row,
        lambda record_type: combined({name: one.bind(record_type) for name, one in aggregators.items()}),
        _differ(aggregators, compiled["differ"]),
    )


def _differ(aggregators: Mapping[str, Aggregator[Any, Any]], compiled: Any) -> Any:
    if any(one.add is one_more for one in aggregators.values()):
        return always
    return compiled if all(one.differ for one in aggregators.values()) else None


def _compile(accumulator: type, row: type, aggregators: Mapping[str, Aggregator[Any, Any]]) -> dict[str, Any]:
    """``add``, ``result`` and ``differ``, from source code: loops over the names take as long as the aggregates."""
    functions: dict[str, Any] = {"new": accumulator, "row": row}
    added, results, differences = [], [], []
    for number, (name, one) in enumerate(aggregators.items()):
        called = {"add": one.add, "merge": one.merge, "result": one.result, "differ": one.differ}
        functions.update({f"{function}_{number}": given for function, given in called.items()})
        kept, other = attribute("kept", name), attribute("other", name)
        if one.item:
            added.append(f"{kept} + {one.item}" if one.merge is plus else f"merge_{number}({kept}, {one.item})")
        else:
            added.append(f"add_{number}({kept}, record)")
        results.append(kept if one.result is same else f"result_{number}({kept})")
        differences.append(f"{kept} != {other}" if one.differ is ne else f"differ_{number}({kept}, {other})")
    source = (
        "def add(kept, record):",
        "    value = record.value" if any("value" in one.item for one in aggregators.values()) else "",
        f"    return new({', '.join(added)})",
        f"def result(kept): return row({', '.join(results)})",
        f"def differ(kept, other): return {' or '.join(differences)}",
    )
    exec("\n".join(source), functions)
    return functions
