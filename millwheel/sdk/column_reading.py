"""How windows and sinks by columns read an input from columns of Arrow: filters, and fields (section 4.2; G1).

A filter that is an expression of fields is computed for all records of a delivery at once. What a filter drops is not
looked at by the next step, nor by an aggregate, as with records. So neither fails for a record that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from millwheel.sdk.column_fields import ColumnFields, has_plain_default
from millwheel.sdk.errors import UsageError
from millwheel.sdk.exact_types import behind, is_plain_struct, unless_none
from millwheel.sdk.expression_columns import columns_for, columns_for_truth, computed, kind_in_columns, truths
from millwheel.sdk.expressions import Expression
from millwheel.sdk.field_paths import type_at
from millwheel.sdk.selections import Selection
from millwheel.sdk.typeinfo import type_name

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column, Rows

__all__ = ["ColumnReading", "ColumnRows", "conditions_of", "steps_for"]

_MAX_SHOWN: Final = 80
"""The most characters of an expression in a reason."""


class ColumnExpression(NamedTuple):
    """An expression, with the fields that it reads and their types. As a step it is a filter."""

    expression: Expression
    fields: list[tuple[str, type]]
    kind: type
    """The type of what it is."""


class ColumnSelection(NamedTuple):
    """The fields of the values that are made: those that are taken over, and those that are computed."""

    taken: dict[str, tuple[str, type]]
    """By field: the field that it was, with its type."""
    computed: dict[str, ColumnExpression]
    """By field: its expression, and what that reads."""
    to: Any
    """The type of the values."""


class ColumnRows:
    """The records that have passed so far, and their fields.

    Args:
        count: The number of records.
        column: The column of a field, for the records at some places. A slice: for all of them.
    """

    def __init__(self, count: int, column: Callable[[str, slice | Rows], Any]) -> None:
        import numpy as np

        self._count = count
        self._column = column
        self.places: Rows = np.arange(count)
        """Which of the records have passed, in their order."""
        self._names: dict[str, str] | None = None
        """By field: the field of the records that it is. None: they are the same."""
        self._computed: dict[str, Column] = {}
        """By field: what was computed for the records that have passed."""

    def fields(self, names: Iterable[str]) -> dict[str, Any]:
        """The columns of some fields."""
        chosen = slice(None) if len(self.places) == self._count else self.places
        found = dict[str, Any]()
        for name in names:
            if name in self._computed:
                found[name] = self._computed[name]
            else:
                found[name] = self._column(name if self._names is None else self._names[name], chosen)
        return found

    def source(self, name: str) -> str | Column:
        """The field of the records that a field is, or what was computed for those that have passed."""
        if name in self._computed:
            return self._computed[name]
        return name if self._names is None else self._names[name]

    def filter(self, step: ColumnExpression) -> None:
        """Leave the records that pass a filter."""
        import numpy as np

        kept = truths(step.expression, self.fields(name for name, _ in step.fields))
        if kept.all():
            return
        chosen = np.flatnonzero(kept)  # quicker than by truth values
        self.places = self.places[chosen]
        self._computed = {name: column[chosen] for name, column in self._computed.items()}

    def select(self, step: ColumnSelection) -> None:
        """Take the fields of other values. All are computed: if one fails for a record, its value would, too."""
        made = {
            name: computed(one.expression, self.fields(field for field, _ in one.fields))
            for name, one in step.computed.items()
        }
        before, names = self._computed, self._names
        made |= {name: before[was] for name, (was, _) in step.taken.items() if was in before}
        self._names = {
            name: was if names is None else names[was] for name, (was, _) in step.taken.items() if was not in before
        }
        self._computed = made


class ColumnReading:
    """The steps between an input and windows, in their order, and where its fields are."""

    def __init__(self, fields: ColumnFields, steps: Sequence[ColumnExpression | ColumnSelection] = ()) -> None:
        self.steps = steps
        self._fields = fields
        self._read: list[tuple[str, type]] = []
        """The fields of the records that the steps read."""
        self._taken: dict[str, str] | None = None
        """By field of the values that windows get: the field of the records that it is. None: they are the same."""
        self._computed = dict[str, type]()
        """The fields of these values that are computed, each with its type."""
        for step in steps:
            self._add(step)

    def _add(self, step: ColumnExpression | ColumnSelection) -> None:
        own = self._of_records(_read_by(step))
        assert not isinstance(own, str), own  # steps_for() has refused it
        self._read += own
        if isinstance(step, ColumnExpression):
            return
        before, taken = self._computed, self._taken
        self._computed = {name: one.kind for name, one in step.computed.items()}
        self._computed |= {name: before[was] for name, (was, _) in step.taken.items() if was in before}
        self._taken = {
            name: was if taken is None else taken[was] for name, (was, _) in step.taken.items() if was not in before
        }

    def _of_records(self, wanted: Iterable[tuple[str, type]]) -> list[tuple[str, type]] | str:
        """The fields of the records that some fields of values are. A text: why columns do not say one of these.

        A computed field has exactly the type that is wanted, as the column of another field has.
        """
        found: list[tuple[str, type]] = []
        for name, kind in wanted:
            made = self._computed.get(name)
            was = name if self._taken is None else self._taken.get(name)
            if made is not None:
                if made is not kind:
                    return f"the field {name!r} of select is {made.__name__}, and an aggregate wants {kind.__name__}"
            elif was is None:
                return f"an aggregate reads the field {name!r}, which select leaves at its default"
            else:
                found.append((was, kind))
        return found

    def columns_of(
        self, wanted: Iterable[tuple[str, type]], columns: Mapping[str, type], nulls: Set[str] = frozenset()
    ) -> dict[str, str] | None:
        """By field of the records: the column that has it. It has all fields that are read for those that are wanted.

        None: only the values of the records say it. See ``ColumnFields.columns_of``, which has the arguments.
        """
        if isinstance(own := self._of_records(wanted), str):
            return None
        read = [*self._read, *own]
        names = self._fields.columns_of(read, columns, nulls)
        return None if names is None else {field: name for (field, _), name in zip(read, names, strict=True)}

    def problem(self, wanted: Iterable[tuple[str, type]]) -> str:
        """Why no columns have the fields that are wanted and those of the steps. Empty: there may be such columns."""
        own = self._of_records(wanted)
        return own if isinstance(own, str) else self._fields.problem([*self._read, *own])

    def passed(self, rows: ColumnRows) -> ColumnRows:
        """Run the steps.

        Raises:
            NotFoldedError: Only the values of the records say it.
        """
        for step in self.steps:
            if not len(rows.places):
                break
            if isinstance(step, ColumnExpression):
                rows.filter(step)
            else:
                rows.select(step)
        return rows


def conditions_of(condition: Expression) -> list[Expression]:
    """The conditions that have the effect of one, one after the other: those that ``&`` joins.

    Python looks at the right side of ``and`` only if the left one is true, and so does the next filter.
    """
    if condition.operator != "&":
        return [condition]
    return [each for part in condition.parts for each in conditions_of(part)]


def steps_for(
    steps: Iterable[Expression | Selection], record_type: Any
) -> list[ColumnExpression | ColumnSelection] | str:
    """The steps by columns, from values of a type on. A text: why columns cannot compute one of them."""
    found: list[ColumnExpression | ColumnSelection] = []
    known: Container[str] | None = None
    try:
        for step in steps:
            made = _selection(step, record_type) if isinstance(step, Selection) else _filters(step, record_type)
            if isinstance(made, str):
                return made
            if known is not None and any(field not in known for one in made for field, _ in _read_by(one)):
                shown = _shown(step) if isinstance(step, Expression) else repr(step)
                return f"{shown} reads a field that select leaves at its default"
            if isinstance(step, Selection):
                record_type, known = step.to, step.fields
            found += made
    except UsageError as error:  # the type of the stream was unknown when the program was built
        return str(error)
    return found


def _read_by(step: ColumnExpression | ColumnSelection) -> list[tuple[str, type]]:
    """The fields that a step reads of the values before it, each with its type."""
    if isinstance(step, ColumnExpression):
        return step.fields
    return [field for one in step.computed.values() for field in one.fields] + [*step.taken.values()]


def _filters(condition: Expression, record_type: Any) -> Sequence[ColumnExpression] | str:
    found: list[ColumnExpression] = []
    for one in conditions_of(condition):
        fields, kind = columns_for_truth(one, record_type), kind_in_columns(one, record_type)
        if fields is None or kind is None:
            return f"its filter {_shown(one)} is not of numbers, truth values and comparisons of texts alone"
        found.append(ColumnExpression(one, fields, kind))
    return found


def _selection(step: Selection, record_type: Any) -> Sequence[ColumnSelection] | str:
    if not is_plain_struct(step.to) or type(step.to) is not type(msgspec.Struct):
        return f"{type_name(step.to)}, which select makes, is no plain struct"
    for field in msgspec.structs.fields(step.to):
        if field.name not in step.fields and not has_plain_default(field):  # it may fail for a record
            return f"a function of {type_name(step.to)} makes the field {field.name!r}, which select leaves out"
    made = ColumnSelection({}, {}, step.to)
    for name, expression in step.fields.items():
        read, kind = columns_for(expression, record_type), kind_in_columns(expression, record_type)
        wanted = type_at(step.to, name)
        if read is None or kind is None:
            shown = _shown(expression)
            return f"the field {name!r} of select is of no numbers, truth values and comparisons of texts: {shown}"
        if kind is not behind(unless_none(wanted) or wanted):
            return f"the field {name!r} of {type_name(step.to)} is no plain {kind.__name__}, as {_shown(expression)} is"
        if expression.operator == "col":
            made.taken[name] = read[0]
        else:
            made.computed[name] = ColumnExpression(expression, read, kind)
    return [made]


def _shown(expression: Expression) -> str:
    """The beginning of an expression, which may have a list of any length."""
    text = repr(expression)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
