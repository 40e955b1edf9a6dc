"""Values as columns of NumPy, and columns of any library as lists. The first column loads NumPy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from math import nan
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final

from millwheel.sdk.arrays import is_numpy
from millwheel.sdk.error_texts import error_message
from millwheel.sdk.errors import UsageError
from millwheel.sdk.typeinfo import Field, field_of, members, supertype, type_name

if TYPE_CHECKING:
    from millwheel.sdk.columns import Column

__all__ = [
    "column_of",
    "columns_given",
    "field_values",
    "list_of",
    "needed",
    "number_kind",
    "plain_values",
    "row_numbers",
]

_TO_LIST: Final = ("to_pylist", "to_list", "tolist")
"""The methods of pyarrow, Polars, pandas and NumPy that return Python's own values."""


def needed(module: str, extra: str, method: str) -> Any:
    """A module that is no dependency of MillWheel.

    Raises:
        UsageError: It cannot be loaded here.
    """
    try:
        return import_module(module)
    except Exception as error:  # also what a wheel for another processor raises
        why = f"{method} needs {module}, which cannot be loaded here ({error_message(error)})"
        raise UsageError(f"{why}: install {extra} at each worker") from error


def number_kind(annotation: Any) -> type | None:
    """``float``, ``int`` or ``bool`` for a field that has such numbers alone. None for any other type.

    >>> number_kind(float | None), number_kind(int | None)  # a missing float is NaN
    (<class 'float'>, None)
    """
    kinds = {supertype(one) for one in members(annotation)}
    if kinds == {float} or kinds == {float, type(None)} or kinds == {float, int}:
        return float
    only = kinds.pop() if len(kinds) == 1 else None
    return only if only in (int, bool) else None


def field_values(values: Sequence[Any], record_type: Any, name: str, where: str) -> tuple[list[Any], Any]:
    """The values of a field of each record, and its type. Any: the records' type does not say it.

    Raises:
        UsageError: The records have no such field.
    """
    found = field_of(record_type, name)
    if isinstance(found, str):
        known = f"its fields are {found}" if found else "it has no fields"
        raise UsageError(f"{where} has records of {type_name(record_type)}, which has no field {name!r}: {known}")
    return list(map(_reader(found, name), values)), Any if found is None else found.type


def _reader(field: Field | None, name: str) -> Callable[[Any], Any]:
    if field is not None and field.item is not None:
        return itemgetter(name) if field.item else attrgetter(name)
    return lambda value: value[name] if isinstance(value, Mapping) else getattr(value, name)


def column_of(values: Sequence[Any], annotation: Any, what: str) -> Column:
    """Values of a type as a column.

    Raises:
        UsageError: They do not fit into one: an integer has more than 64 bits, or arrays differ in shape.
    """
    import numpy as np

    kind = number_kind(annotation)
    try:
        if kind is float:
            given = [nan if one is None else one for one in values] if None in values else values
            return np.array(given, np.float64)
        if kind is not None:
            return np.array(values, np.int64 if kind is int else np.bool_)
        if is_numpy(plain := getattr(annotation, "__origin__", annotation)):
            return np.stack(values) if plain is np.ndarray else np.array(values, plain)
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{what} is no column of NumPy: {error}. Take batch.values") from error
    return np.fromiter(values, object, len(values))


def list_of(column: Any, what: str) -> list[Any]:
    """A column of NumPy, pandas, Polars or pyarrow, or any other sequence, as a list of Python's own values.

    Rows of an array with several dimensions stay arrays.

    Raises:
        UsageError: It is a single value. ``what``: where it was given.
    """
    if getattr(column, "ndim", 1) != 1:
        return list(column)
    for name in _TO_LIST:
        convert = getattr(column, name, None)
        if convert is not None:
            found = convert()
            if isinstance(found, list):
                return found
    if isinstance(column, str | bytes) or not isinstance(column, Iterable):
        one = type_name(type(column))
        raise UsageError(f"{what} takes a list or a column, not one {one}: give [{one.lower()}] for one record")
    return plain_values(list(column))


def plain_values(values: Sequence[Any]) -> list[Any]:
    """The values, with Python's own numbers in place of those of NumPy, as a loop over a column finds them."""
    if (numpy := sys.modules.get("numpy")) is None:
        return list(values)
    kinds = {kind for kind in set(map(type, values)) if issubclass(kind, numpy.generic)}
    return [one.item() if type(one) in kinds else one for one in values] if kinds else list(values)


def columns_given(given: Any, what: str) -> dict[str, list[Any]] | None:
    """The columns of a mapping, or of a table of pyarrow, pandas or Polars, by name. None: it is none of these.

    Raises:
        UsageError: They differ in length.
    """
    if isinstance(given, Mapping):
        found = {str(name): list_of(column, f"{what}, column {str(name)!r},") for name, column in given.items()}
    else:
        names: Any = getattr(given, "column_names", None)  # pyarrow. Its ``columns`` are no names
        if names is None:
            names = getattr(given, "columns", None)
        if names is None:
            return None
        found = {str(name): list_of(given[name], what) for name in names}
    if len(lengths := {len(column) for column in found.values()}) > 1:
        raise UsageError(f"columns of a table have one length, and these have {sorted(lengths)} rows")
    return found


def row_numbers(rows: Any, count: int, what: str = "rows=") -> list[int]:
    """Row numbers of a batch of ``count`` records, from numbers or from a truth value for each record.

    >>> row_numbers([2, 0], 3), row_numbers([True, False, True], 3)
    ([2, 0], [0, 2])

    Raises:
        UsageError: A row is none of the batch.
    """
    given = plain_values(list_of(rows, what))
    if given and all(isinstance(one, bool) for one in given):
        if len(given) != count:
            raise UsageError(f"rows= has {len(given)} truth values for the {count} records of the batch")
        return [row for row, chosen in enumerate(given) if chosen]
    for row in given:
        if not isinstance(row, int) or isinstance(row, bool) or not 0 <= row < count:
            raise UsageError(
                f"rows= takes numbers from 0 to {count - 1}, which are records of the batch, not {row!r:.80}"
            )
    return given
