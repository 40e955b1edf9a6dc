"""How windows by columns read an input from columns of Arrow: filters before them, and fields (section 4.2; G1).

A filter that is an expression of fields is computed for all records of a delivery at once. What a filter drops is not
looked at by the next one, nor by an aggregate, as with records. So neither fails for a record that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from millwheel.sdk.column_fields import ColumnFields
from millwheel.sdk.errors import UsageError
from millwheel.sdk.expression_columns import columns_for_truth, truths
from millwheel.sdk.expressions import Expression

if TYPE_CHECKING:
    from millwheel.sdk.columns import Rows

__all__ = ["ColumnFilter", "ColumnReading", "conditions_of", "filters_for"]


class ColumnFilter(NamedTuple):
    """A condition, and the fields that it reads, each with its type."""

    condition: Expression
    fields: list[tuple[str, type]]


class ColumnReading:
    """The filters of an input, in their order, and where its fields are."""

    def __init__(self, fields: ColumnFields, filters: Sequence[ColumnFilter] = ()) -> None:
        self.filters = filters
        self._fields = fields
        self._read = [field for one in filters for field in one.fields]

    def columns_of(self, wanted: Iterable[tuple[str, type]], columns: Mapping[str, type]) -> dict[str, str] | None:
        """By field: the column that has it. It has the fields that are wanted, and those of the filters.

        None: only the values of the records say it. See ``ColumnFields.columns_of``, which has the arguments.
        """
        read = [*self._read, *wanted]
        names = self._fields.columns_of(read, columns)
        return None if names is None else {field: name for (field, _), name in zip(read, names, strict=True)}

    def problem(self, wanted: Iterable[tuple[str, type]]) -> str:
        """Why no columns have the fields that are wanted and those of the filters. Empty: there may be such columns."""
        return self._fields.problem([*self._read, *wanted])

    def passing(self, count: int, column: Callable[[str, slice | Rows], Any]) -> Rows:
        """The places of those records that all filters pass, in their order.

        Args:
            count: The number of records.
            column: The column of a field, for the records at some places. A slice: for all of them.

        Raises:
            NotFoldedError: Only the values of the records say it.
        """
        import numpy as np

        places: Rows = np.arange(count)
        for condition, fields in self.filters:
            chosen = slice(None) if len(places) == count else places
            kept = truths(condition, {field: column(field, chosen) for field, _ in fields})
            if not kept.all():
                places = places[np.flatnonzero(kept)]  # quicker than by truth values
            if not len(places):
                break
        return places


def conditions_of(condition: Expression) -> list[Expression]:
    """The conditions that have the effect of one, one after the other: those that ``&`` joins.

    Python looks at the right side of ``and`` only if the left one is true, and so does the next filter.
    """
    if condition.operator != "&":
        return [condition]
    return [each for part in condition.parts for each in conditions_of(part)]


def filters_for(conditions: Iterable[Expression], record_type: Any) -> list[ColumnFilter] | str:
    """The filters by columns of values of a type. A text: why columns cannot compute one of them."""
    found: list[ColumnFilter] = []
    for condition in conditions:
        try:
            fields = columns_for_truth(condition, record_type)
        except UsageError as error:  # the type of the stream was unknown when the program was built
            return str(error)
        if fields is None:
            return f"its filter {condition!r} is not of numbers, truth values and comparisons of texts alone"
        found.append(ColumnFilter(condition, fields))
    return found
