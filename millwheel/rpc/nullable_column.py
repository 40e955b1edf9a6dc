"""Columns in which some items are None, and items of a column at some rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millwheel.rpc.column_keys import integers_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NullableColumn", "items_at", "truths_of", "validity_of"]


class NullableColumn:
    """A column of which some items are None. Readers of plain columns do not know it, so none takes a None for 0.

    Args:
        items: A NumPy array, or texts as Arrow has them. What it has for None means nothing.
        valid: Whether each item is one. Otherwise it is None.
    """

    __slots__ = ("items", "valid")

    def __init__(self, items: Any, valid: NDArray[Any]) -> None:
        self.items = items
        self.valid = valid


def items_at(column: Any, rows: Any) -> Any:
    """The items of a column at some rows. It is a ``NullableColumn`` only if one of these is None.

    Args:
        column: A NumPy array, texts as Arrow has them, or a NullableColumn.
        rows: A slice, or an array of indexes.
    """
    if isinstance(column, NullableColumn):
        valid, items = column.valid[rows], items_at(column.items, rows)
        return items if valid.all() else NullableColumn(items, valid)
    if hasattr(column, "dtype") or isinstance(rows, slice):
        return column[rows]
    return column.take(integers_of(rows))


def truths_of(column: Any) -> NDArray[Any]:
    """A column of truth values of Arrow, as NumPy has it. What it has for a null means nothing."""
    return _bits_of(column, 1)


def validity_of(column: Any) -> NDArray[Any]:
    """Whether each item of a column of Arrow that has nulls is none."""
    return _bits_of(column, 0)


def _bits_of(column: Any, buffer: int) -> NDArray[Any]:
    import numpy as np

    bits = np.unpackbits(np.frombuffer(column.buffers()[buffer], np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)].view(np.bool_)
