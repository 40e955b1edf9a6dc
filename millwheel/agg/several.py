"""Several aggregates of the same records, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millwheel.agg.aggregator import Aggregator, result_type_of
from millwheel.sdk.errors import UsageError
from millwheel.sdk.records import Record

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
    steps = [(name, one.add) for name, one in aggregators.items()]

    def add(accumulators: Any, record: Record[Any]) -> Any:
        for name, step in steps:
            setattr(accumulators, name, step(getattr(accumulators, name), record))
        return accumulators

    def merge(a: Any, b: Any) -> Any:
        for name, one in aggregators.items():
            setattr(a, name, one.merge(getattr(a, name), getattr(b, name)))
        return a

    def result(accumulators: Any) -> dict[str, Any]:
        return {name: one.result(getattr(accumulators, name)) for name, one in aggregators.items()}

    types = {name: result_type_of(one) for name, one in aggregators.items()}
    row = msgspec.defstruct("Row", list(types.items()))
    return Aggregator(
        accumulator,
        accumulator,
        add,
        merge,
        result,
        row,
        lambda record_type: several({name: one.bind(record_type) for name, one in aggregators.items()}),
    )
