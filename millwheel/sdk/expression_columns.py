"""Expressions by columns: for all records of a delivery at once, in NumPy, with exactly the results that Python has.

NumPy's integers wrap, and become floats beside floats. Python's are of any size, and are compared exactly. So each
integer is known with bounds, and what might differ is refused: NotFoldedError. Then the values of the records are read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from millwheel.rpc.nullable_column import NullableColumn, items_at, truths_of
from millwheel.sdk.columns import NotFoldedError
from millwheel.sdk.exact_types import unless_none
from millwheel.sdk.expressions import Expression
from millwheel.sdk.field_paths import type_at
from millwheel.sdk.typeinfo import supertype

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = ["columns_for", "columns_for_truth", "computed", "kind_in_columns", "truths"]

_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OF_TEXTS: Final = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}
"""Arrow's functions. Texts have the order of their characters, and so have their bytes in UTF-8."""
_IN_COLUMNS: Final = (bool, int, float, str)
"""The types of fields that are read from columns."""
_NUMBERS: Final = (bool, int, float)
_MOST: Final = (1 << 63) - 1
_EXACT: Final = 1 << 53
"""Integers up to it, and their negatives, are exact as floats."""
_TO_LOOK_UP: Final = 3
"""If this multiple of the items of ``is_in`` is more than the records, each is looked up in a set. Otherwise a column
is made of the items, which is then quicker."""


class _Operand(NamedTuple):
    """A part of an expression, for all records."""

    items: Any
    """A NumPy array, a column of texts as Arrow has it, or a constant."""
    bounds: tuple[int, int] | None = None
    """No integer is beyond them. None: it has floats or texts."""
    valid: Any = None
    """For each record, whether there is an item: otherwise it is None. None: there is one for each record."""


def columns_for(expression: Expression, record_type: Any) -> list[tuple[str, type]] | None:
    """The fields that an expression reads of values of a type, each with its type. None: columns cannot compute it.

    A field that may be None has the type that it has otherwise: what to do with None is decided for each delivery.

    Raises:
        UsageError: As by ``Expression.type_in``.
    """
    expression.type_in(record_type)
    fields: list[tuple[str, type]] = []
    return fields if _kind(expression, record_type, fields) is not None else None


def kind_in_columns(expression: Expression, record_type: Any) -> type | None:
    """The type of what columns compute. None: they cannot compute it."""
    return _kind(expression, record_type, [])


def columns_for_truth(expression: Expression, record_type: Any) -> list[tuple[str, type]] | None:
    """As ``columns_for``, for :func:`truths`: None also of a text."""
    fields = columns_for(expression, record_type)
    return None if _kind(expression, record_type, []) is str else fields


def _kind(one: Expression, record_type: Any, fields: list[tuple[str, type]]) -> type | None:
    """The type of what columns compute. None: they cannot. It appends the fields that are read."""
    if one.operator == "col":
        (path,) = one.parts
        kind = type_at(record_type, path)
        kind = supertype(unless_none(kind) or kind)
        if kind not in _IN_COLUMNS or "." in path:
            return None
        fields.append((path, kind))
        return cast("type", kind)
    if one.operator == "const":
        (value,) = one.parts
        items = value if isinstance(value, tuple) else (value,)
        fits = all(type(item) is not int or -_MOST <= item <= _MOST for item in items)
        return type(items[0]) if fits else None
    kinds = [_kind(part, record_type, fields) for part in one.parts]
    if one.operator in ("&", "|", "~"):
        return bool if all(kind is bool for kind in kinds) else None
    if one.operator == "in":
        return bool if _likes(*kinds) and float not in kinds else None
    if one.operator in _COMPARISONS:
        with_none = one.operator in ("==", "!=") and kinds.count(NoneType) == 1 and None not in kinds
        return bool if with_none or _likes(*kinds) else None
    if not all(kind in _NUMBERS for kind in kinds):
        return None
    return float if one.operator == "/" or float in kinds else int


def _likes(one: type | None, other: type | None) -> bool:
    """Whether both are texts, or both are numbers."""
    return one is other is str or (one in _NUMBERS and other in _NUMBERS)


def computed(expression: Expression, columns: Mapping[str, Any]) -> Column:
    """What the expression is for each record.

    Args:
        expression: It reads the fields that ``columns_for`` says, and no others.
        columns: By field: its column. There is a record.

    Raises:
        NotFoldedError: NumPy may have other results than Python, or Python has an error.
    """
    items: Column = _whole(_evaluated(expression, columns))
    return items


def _evaluated(expression: Expression, columns: Mapping[str, Any]) -> _Operand:
    import numpy as np

    with np.errstate(all="ignore"):  # an infinite number is no error, as in Python
        return _operand(expression, columns)


def truths(expression: Expression, columns: Mapping[str, Any]) -> Column:
    """Whether the expression is true for each record, as ``if`` takes it.

    Args:
        expression: It reads the fields that ``columns_for_truth`` says.
        columns: As for :func:`computed`.

    Raises:
        NotFoldedError: As by :func:`computed`.
    """
    found: Column = _truth(_evaluated(expression, columns))
    return found


def _operand(one: Expression, columns: Mapping[str, Any]) -> _Operand:
    import numpy as np

    if one.operator == "col":
        return _column(columns[one.parts[0]])
    if one.operator == "const":
        (value,) = one.parts
        return _Operand(value, (int(value), int(value)) if isinstance(value, int) else None)
    if one.operator == "in":
        return _Operand(_is_in(_operand(one.parts[0], columns), one.parts[1]), (0, 1))
    if one.operator in ("&", "|"):
        return _Operand(_joined(one, columns), (0, 1))
    parts = [_operand(part, columns) for part in one.parts]
    first, last = parts[0], parts[-1]
    if one.operator in _ARITHMETIC:
        return _calculated(one.operator, first, last)
    if one.operator == "-x":
        return _calculated("-", _Operand(-0.0) if first.bounds is None else _Operand(0, (0, 0)), first)
    if one.operator == "~":
        return _Operand(np.logical_not(_truth(first)), (0, 1))
    return _Operand(_compared(one.operator, first, last), (0, 1))


def _column(column: Any) -> _Operand:
    if isinstance(column, NullableColumn):
        return _column(column.items)._replace(valid=column.valid)
    kind = getattr(column, "dtype", None)
    if kind is None or kind.kind == "f":
        return _Operand(column)
    return _Operand(column, (0, 1) if kind.kind == "b" else (int(column.min()), int(column.max())))


def _whole(one: _Operand) -> Any:
    """The items, if none is None."""
    if one.valid is not None:
        raise NotFoldedError("with None, Python has an error, or a result that is no item of a column")
    return one.items


def _truth(one: _Operand) -> Any:
    """Whether each item is true, as ``if`` takes it. None is not."""
    import numpy as np

    items = np.asarray(one.items)
    found = items if items.dtype == bool else items != 0
    return found if one.valid is None else found & one.valid


def _joined(one: Expression, columns: Mapping[str, Any]) -> Any:
    """Two conditions that ``&`` or ``|`` joins. If the right one reads a field that is None, it is computed for the
    records of which the left one does not decide: Python does not look at it for the others, and it may be an error."""
    import numpy as np

    first, read = _truth(_operand(one.parts[0], columns)), dict.fromkeys(one.parts[1].paths())
    if not any(isinstance(columns[name], NullableColumn) for name in read):
        last = _truth(_operand(one.parts[1], columns))
    else:
        last, asked = np.zeros(first.shape, bool), np.flatnonzero(first if one.operator == "&" else ~first)
        if len(asked):
            some = {name: items_at(columns[name], asked) for name in read}
            last[asked] = _truth(_operand(one.parts[1], some))
    return np.logical_and(first, last) if one.operator == "&" else np.logical_or(first, last)


def _calculated(sign: str, one: _Operand, other: _Operand) -> _Operand:
    """Floats are those of IEEE in both ways. Of two NaN that meet, either may be the result: they are refused."""
    import numpy as np

    for each in (one, other):
        _whole(each)
    made = _ARITHMETIC[sign]
    if sign == "/" or one.bounds is None or other.bounds is None:
        by = _floats(other)
        if sign == "/" and not np.all(by):
            raise NotFoldedError("a division by zero is an error of its record")
        floats = made(_floats(one), by)
        if np.isnan(floats).any():
            raise NotFoldedError("which bits a NaN has is not known")
        return _Operand(floats)
    ends = [made(a, b) for a in one.bounds for b in other.bounds]
    bounds = min(ends), max(ends)
    if bounds[0] < -_MOST or bounds[1] > _MOST:
        raise NotFoldedError("an integer may leave 64 bits")
    return _Operand(made(_integers(one), _integers(other)), bounds)


def _compared(sign: str, one: _Operand, other: _Operand) -> Any:
    import numpy as np

    for this, that in ((one, other), (other, one)):
        if that.items is None:
            return np.full(len(this.items), sign == "!=") if this.valid is None else this.valid == (sign == "!=")
    if one.valid is not None or other.valid is not None:
        return _compared_with_none(sign, one, other)
    if one.bounds is not None and other.bounds is not None:
        return _COMPARISONS[sign](_integers(one), _integers(other))
    if not _is_text(one) and not _is_text(other):
        return _COMPARISONS[sign](_floats(one), _floats(other))
    return _of_texts(_OF_TEXTS[sign], one.items, other.items)


def _compared_with_none(sign: str, one: _Operand, other: _Operand) -> Any:
    """None is equal to None alone. It has no order: Python has an error."""
    if sign not in ("==", "!="):
        raise NotFoldedError("None has no order")
    there = [True if each.valid is None else each.valid for each in (one, other)]
    alike = _compared("==", one._replace(valid=None), other._replace(valid=None)) & there[0] & there[1]
    if one.valid is not None and other.valid is not None:
        alike |= ~(one.valid | other.valid)
    return alike if sign == "==" else ~alike


def _is_in(one: _Operand, items: Expression) -> Any:
    """Whether each is one of some items. The cost of a record is bounded, however many items there are."""
    if one.valid is not None:  # None is none of them
        return _is_in(one._replace(valid=None), items) & one.valid
    import numpy as np

    values = items.parts[0]
    if _TO_LOOK_UP * len(values) > len(one.items):
        return np.fromiter(map(items.members().__contains__, one.items.tolist()), bool, len(one.items))
    if one.bounds is not None:
        return np.isin(_integers(one), np.array(values, np.int64))
    return _of_texts("is_in", one.items, values)


def _of_texts(function: str, *operands: Any) -> Any:
    """What a function of Arrow says of texts. A column of texts is one of Arrow, so that is here."""
    import pyarrow.compute as pc

    from millwheel.rpc.columns import texts_of

    first, last = (texts_of([one])[0] if isinstance(one, str) else one for one in operands)
    if isinstance(last, tuple):
        return truths_of(pc.is_in(first, texts_of(last)))
    return truths_of(getattr(pc, function)(first, last))


def _is_text(one: _Operand) -> bool:
    return not isinstance(one.items, float | int) and not hasattr(one.items, "dtype")


def _integers(one: _Operand) -> Any:
    """An operand with bounds, as integers: NumPy has other rules for truth values."""
    import numpy as np

    return np.asarray(one.items, np.int64)


def _floats(one: _Operand) -> Any:
    """An operand that has no texts, as floats."""
    import numpy as np

    if one.bounds is not None and (one.bounds[0] < -_EXACT or one.bounds[1] > _EXACT):
        raise NotFoldedError("as a float, an integer may be another number")
    return np.asarray(one.items, np.float64)
