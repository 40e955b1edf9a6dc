"""Several aggregates of the same records, by name."""

from __future__ import annotations

from collections.abc import Mapping
from operator import ne
from typing import Any

import msgspec

from millwheel.agg.aggregator import Aggregator, result_type_of
from millwheel.agg.numbers import one_more
from millwheel.agg.reading import same
from millwheel.sdk.errors import UsageError
from millwheel.sdk.exact_types import is_writable

__all__ = ["several"]


def several(aggregators: Mapping[str, Aggregator[Any, Any]]) -> Aggregator[Any, dict[str, Any]]:
    """One aggregator that computes all of them. Its result has the results by name.

    The accumulator has a field for each name. So an aggregate may be added later: it starts with the records from then
    on.

    Args:
        aggregators: The aggregators, by the names of their results.

    Raises:
        UsageError: One of them is no aggregator.
    """
    stated: Mapping[str, object] = aggregators
    for name, given in stated.items():
        if not isinstance(given, Aggregator):
            hint = ": results before the end need a window" if name == "early" else "; options are given by options={…}"
            raise UsageError(f"{name}={given!r} is no aggregate, such as agg.count(){hint}")
    fields = [(name, one.accumulator, msgspec.field(default_factory=one.new)) for name, one in aggregators.items()]
    accumulator = msgspec.defstruct("Accumulators", fields)
    compiled = _compile(accumulator, aggregators)

    def merge(a: Any, b: Any) -> Any:
        for name, one in aggregators.items():
            setattr(a, name, one.merge(getattr(a, name), getattr(b, name)))
        return a

    types = {name: result_type_of(one) for name, one in aggregators.items()}
    row = msgspec.defstruct("Row", list(types.items()))
    return Aggregator(
        accumulator,
        accumulator,
        compiled["add"],
        merge,
        compiled["result"],
        row,
        lambda record_type: several({name: one.bind(record_type) for name, one in aggregators.items()}),
        compiled["differ"] if all(one.differ for one in aggregators.values()) else None,
    )


def _compile(accumulator: type, aggregators: Mapping[str, Aggregator[Any, Any]]) -> dict[str, Any]:
    """``add``, ``result`` and ``differ``, from source code: loops over the names take as long as the aggregates."""
    functions: dict[str, Any] = {"new": accumulator}
    added, results, differences = [], [], []
    for number, (name, one) in enumerate(aggregators.items()):
        functions.update({f"add_{number}": one.add, f"result_{number}": one.result, f"differ_{number}": one.differ})
        kept, other = (f"{of}.{name}" if is_writable(name) else f"getattr({of}, {name!r})" for of in ("kept", "other"))
        added.append(f"{kept} + 1" if one.add is one_more else f"add_{number}({kept}, record)")
        results.append(f"{name!r}: {kept if one.result is same else f'result_{number}({kept})'}")
        differences.append(f"{kept} != {other}" if one.differ is ne else f"differ_{number}({kept}, {other})")
    source = (
        f"def add(kept, record): return new({', '.join(added)})",
        f"def result(kept): return {{{', '.join(results)}}}",
        f"def differ(kept, other): return {' or '.join(differences)}",
    )
    exec("\n".join(source), functions)
    return functions
