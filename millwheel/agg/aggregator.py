"""Aggregators compute one value from many records, one record at a time.

Their partial results can be merged, which sessions and two-phase aggregation need.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from millwheel.sdk.columns import Fold
from millwheel.sdk.errors import UsageError
from millwheel.sdk.expressions import expression_of
from millwheel.sdk.records import Record
from millwheel.sdk.typeinfo import generic_arguments, returned_type

__all__ = ["Aggregator", "adding", "fold_of", "objecting", "objection_of", "result_type_of"]

A = TypeVar("A")
R = TypeVar("R")


@dataclass  # not frozen, so that Aggregator[A, R](...) works: Python 3.11 sets __orig_class__ on the instance
class Aggregator(Generic[A, R]):
    """Computes one value from many records: those of a window, or all of a key.

    The result depends on the data alone under two conditions: ``merge`` does not depend on the order of its arguments,
    and ``result`` does not depend on the order of the records.

    The type of the result is ``result_type``, if it is given. Otherwise it is ``R`` of ``Aggregator[A, R](...)`` or of
    a subclass. Otherwise it is the annotated return type of ``result``.

    Args:
        accumulator: The type of the accumulators. It must be a valid type for states.
        new: Returns the accumulator of a window without records.
        add: Returns the accumulator with the record added. It may change and return the same object.
        merge: Merges two accumulators. It may change and return one of them.
        result: Returns the value that the window produces.
        result_type: The type of the value that ``result`` returns.
        specialise: Returns the aggregator for records of a type, if the aggregator depends on it.
        differ: Whether the results of two accumulators differ. It is given only if ``add`` changes no accumulator in
            place. By default the encodings of the results are compared, which takes longer.

    A median, for example::

        agg.Aggregator[list[float], float](
            list[float], list, lambda values, record: [*values, record.value.size], operator.add, statistics.median
        )
    """

    accumulator: Any
    new: Callable[[], A]
    add: Callable[[A, Record[Any]], A]
    merge: Callable[[A, A], A]
    result: Callable[[A], R]
    result_type: Any = None
    specialise: Callable[[Any], Aggregator[A, R]] | None = None
    differ: Callable[[A, A], bool] | None = None
    _item: str = field(default="", init=False)
    """Where ``add`` only merges something of a record: what it is, as Python source that reads the variable ``value``.

    Several aggregates at once are then one piece of code.
    """
    _fold: Fold | None = field(default=None, init=False)
    """How many records are added at once. None: only one after another."""
    _without_fold: tuple[str, ...] = field(default=(), init=False)
    """Of several aggregates, the names of those that have no fold."""
    _objection: str = field(default="", init=False)
    """Why no new topology may aggregate records of this type. Empty: it may."""

    def bind(self, record_type: Any) -> Aggregator[A, R]:
        """The aggregator for records of a type.

        Args:
            record_type: The type of the records' values.

        Raises:
            UsageError: The type has not the field that is aggregated, or one that ``where=`` reads.
        """
        if (where := expression_of(getattr(self.add, "where", None))) is not None:
            where.type_in(record_type)
        return self if self.specialise is None else self.specialise(record_type)


def fold_of(aggregator: Aggregator[Any, Any]) -> Fold | None:
    """How the aggregator adds many records at once, if it can."""
    return aggregator._fold


def objection_of(aggregator: Aggregator[Any, Any]) -> str:
    """Why no new topology may aggregate the records for which this is bound. Empty: it may."""
    return aggregator._objection


def objecting(objection: str, aggregator: Aggregator[A, R]) -> Aggregator[A, R]:
    """The aggregator, with an objection to the records for which it is bound. Empty: there is none."""
    aggregator._objection = objection
    return aggregator


def adding(item: str, aggregator: Aggregator[A, R], fold: Fold | None = None) -> Aggregator[A, R]:
    """The aggregator, whose ``add`` only merges ``item``. Empty: it does more, or nothing can be said.

    ``fold``: how it adds many records at once.
    """
    aggregator._item = item
    aggregator._fold = fold
    return aggregator


def result_type_of(aggregator: Aggregator[Any, Any]) -> Any:
    """The type of the aggregator's results. UsageError if nothing states it."""
    if aggregator.result_type is not None:
        return aggregator.result_type
    owner = getattr(aggregator, "__orig_class__", type(aggregator))
    stated = generic_arguments(owner, Aggregator)
    if stated is not None and not isinstance(stated[1], TypeVar):
        return stated[1]
    returned = returned_type(aggregator.result)
    if returned in (None, Any) or isinstance(returned, TypeVar):
        name = getattr(aggregator.result, "__qualname__", repr(aggregator.result))
        raise UsageError(
            f"the aggregator does not state the type of its results: add result_type=..., write "
            f"Aggregator[Accumulator, Result](...), or annotate what its result function {name} returns"
        )
    return returned
